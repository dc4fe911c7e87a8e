// Package cli has the subcommands that talk to the admin API. It is a thin client: it knows the API's paths and members, and
// nothing of how they are stored.
package cli

// Commands are the subcommands, to be embedded into the root of the command line. Each takes a context.Context and the
// *kong.Context, to whose writers it prints.
type Commands struct {
	Orgs       orgsCommand       `cmd:"" aliases:"organizations" group:"Manage:" help:"Manage organizations, the tenants."`
	Teams      teamsCommand      `cmd:"" group:"Manage:" help:"Manage teams and their limits."`
	Keys       keysCommand       `cmd:"" group:"Manage:" help:"Issue, rotate and revoke virtual keys."`
	Users      usersCommand      `cmd:"" group:"Manage:" help:"Manage the people of organizations."`
	Providers  providersCommand  `cmd:"" group:"Manage:" help:"Manage accounts at upstreams."`
	Models     modelsCommand     `cmd:"" group:"Manage:" help:"Manage public model names and what serves them."`
	Limits     limitsCommand     `cmd:"" group:"Manage:" help:"Manage limits and see what is left of them."`
	Guardrails guardrailsCommand `cmd:"" group:"Manage:" help:"Manage what may be said to models and by them."`
	Prices     pricesCommand     `cmd:"" group:"Manage:" help:"Read and extend the price book."`
	Apply      applyCommand      `cmd:"" group:"Manage:" help:"Make the gateway what a file says."`
	Spend      spendCommand      `cmd:"" group:"Account:" help:"Show what was spent."`
	Export     exportCommand     `cmd:"" group:"Account:" help:"Write all ledger rows of a period."`

	Completion completionCommand `cmd:"" group:"Run:" help:"Print a completion script for a shell."`
}

// LedgerCommands are the subcommands of ledger that ask the admin API, to be embedded beside those that need the database.
type LedgerCommands struct {
	Check ledgerCheck `cmd:"" help:"Recompute every counter from the ledger and verify its invariants."`
}

// DifferenceError says that things differ from what was asked for. Commands that fail with it exit with 2.
type DifferenceError struct{ Message string }

func (e *DifferenceError) Error() string { return e.Message }
