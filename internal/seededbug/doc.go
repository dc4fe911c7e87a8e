// Package seededbug keeps a list of bugs that the checks of the ledger must notice. A bug is a text that takes the place
// of another one in a source file while a check is built (go's -overlay), so that nothing of it is in any build of the
// product. `make mutants` builds each, runs the checks that are to notice it and wants them to fail;
// docs/seeded-bugs.md says which check noticed which bug.
package seededbug
