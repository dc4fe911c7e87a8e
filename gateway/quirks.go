package gateway

import (
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// quirkEdits are the changes of a body without which an upstream would refuse it or, worse, ignore its limit of output: one
// that knows the limit of a chat by one name alone gets it by that name. Where the client gives both, that one holds.
func quirkEdits(p providers.Provider, d providers.Dialect, doc *jsonedit.Document) []jsonedit.Edit {
	q, ok := p.(providers.Quirky)
	if !ok || d != providers.OpenAIChat {
		return nil
	}
	known, unknown := q.Quirks().OutputLimit, "max_completion_tokens"
	switch known {
	case "":
		return nil
	case unknown:
		unknown = "max_tokens"
	}
	limit, given := doc.Get(unknown)
	if !given {
		return nil
	}
	edits := []jsonedit.Edit{jsonedit.At(unknown).Delete()}
	if _, both := doc.Get(known); !both {
		edits = append(edits, jsonedit.At(known).Raw(limit))
	}
	return edits
}

// drops takes out what the attempt's target refuses (F101), in the dialect that it is asked in, and warns the client.
func (a *attempt) drops(doc *jsonedit.Document) []jsonedit.Edit {
	var edits []jsonedit.Edit
	for _, name := range a.target.Drop {
		if _, given := doc.Get(name); given {
			edits = append(edits, jsonedit.At(name).Delete())
			a.warnings = append(a.warnings, name+": dropped, since the target refuses it")
		}
	}
	return edits
}
