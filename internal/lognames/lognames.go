// Package lognames holds the names of structured log fields, so that a name is spelt once and means one thing.
package lognames

// The fields.
const (
	RequestID    = "request_id"
	TraceID      = "trace_id"
	Route        = "route"
	Method       = "method"
	Path         = "path"
	Status       = "status"
	Code         = "code"
	DurationMS   = "dur_ms"
	FirstByteMS  = "ttfb_ms"
	OverheadMS   = "overhead_ms"
	Organization = "organization"
	Team         = "team"
	Key          = "key"
	Model        = "model"
	Provider     = "provider"
	Target       = "target"
	Attempt      = "attempt"
	Attempts     = "attempts"
	TokensIn     = "tokens_in"
	TokensOut    = "tokens_out"
	CostUSD      = "cost_usd"
	UsageSource  = "usage_source"
	Outcome      = "outcome"
	Plugin       = "plugin"
	Version      = "version"
	Count        = "count"
	Bytes        = "bytes"
	RemoteIP     = "remote_ip"
)
