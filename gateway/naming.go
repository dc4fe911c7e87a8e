package gateway

import (
	"bytes"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

// naming maps the names that a provider has for files and batches to Tollgate's own.
type naming map[string]string

const leastName = 6 // bytes of a name that cannot be a part of a text by chance

// hide replaces a provider's names in a text.
func (n naming) hide(text []byte) []byte {
	for theirs, ours := range n {
		if len(theirs) >= leastName {
			text = bytes.ReplaceAll(text, []byte(theirs), []byte(ours))
		}
	}
	return text
}

// batchMark is the member of a batch's metadata by which a batch is found again whose creation was cut short.
const batchMark = "tollgate_batch"

// shown lists the members of a batch that its owner sees, in their order. Others may hold names of the provider's.
func shown() []string {
	return []string{
		"id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status", "output_file_id",
		"error_file_id", "created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
		"cancelling_at", "cancelled_at", "request_counts", "usage", "metadata",
	}
}

// picture is a batch as its owner sees it, from what its provider says of it. Members of set stand in place of the provider's.
func (n naming) picture(doc *jsonedit.Document, set map[string]string) []byte {
	out := []byte{'{'}
	for _, name := range shown() {
		raw, ok := doc.Get(name)
		if text, fixed := set[name]; fixed {
			raw, ok = []byte(text), text != ""
		}
		if !ok {
			continue
		}
		if name == "errors" {
			raw = n.hide(raw)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, '"'), name...)
		out = append(append(out, `":`...), raw...)
	}
	return append(out, '}')
}

// withoutMark returns a batch's metadata as its owner gave it.
func withoutMark(doc *jsonedit.Document) string {
	raw, ok := doc.Get("metadata")
	if !ok || raw[0] != '{' {
		return "null"
	}
	inner, err := jsonedit.Parse(raw)
	if err != nil {
		return "null"
	}
	rest, err := inner.With(jsonedit.At(batchMark).Delete())
	if err != nil || string(bytes.Trim(rest, "{} \t\r\n")) == "" {
		return "null"
	}
	return string(rest)
}
