package anthropic

import (
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/providers"
)

// tokens are the counts that a usage object and each of its iterations have. Anthropic counts what was read from and written
// to its cache beside input_tokens, not within.
type tokens struct {
	Input, CacheRead, CacheWrite, Write5m, Write1h, Output, Thinking providers.Count
}

// reported is what the usage objects of an answer say. A later one replaces the members that it has: the numbers of a stream
// are cumulative, and the events at its end may leave out those of the prompt.
type reported struct {
	tokens
	Searches providers.Count
	// beside adds up the iterations that ran beside the answer and are not in its counts: compactions of the context, and what
	// an advisor said. That model has a price of its own, which only its own target would know.
	beside     governance.Quantities
	besideFlaw bool // one of them makes no sense
}

// read takes in a usage object and reports whether it was one.
func (u *reported) read(s *jsonscan.Scanner, raw []byte, tier, place *string) bool {
	s.Reset(raw)
	for s.Enter('{'); s.Next(); {
		switch name := string(s.Name()); name {
		case "server_tool_use":
			u.readServerTools(s)
		case "service_tier":
			setText(tier, s.Text())
		case "speed":
			if text := s.Text(); string(text) == "fast" { // a mode with prices of its own
				setText(tier, text)
			}
		case "inference_geo":
			switch text := s.Text(); string(text) {
			case "", "global", "not_available":
			default: // a place with prices of its own
				setText(place, text)
			}
		case "iterations":
			u.readIterations(s)
		default:
			u.readMember(s, name)
		}
	}
	return s.End()
}

// readMember takes in a member that usage objects and iterations have in common.
func (t *tokens) readMember(s *jsonscan.Scanner, name string) {
	switch name {
	case "input_tokens":
		t.Input.Read(s)
	case "cache_read_input_tokens":
		t.CacheRead.Read(s)
	case "cache_creation_input_tokens":
		t.CacheWrite.Read(s)
	case "output_tokens":
		t.Output.Read(s)
	case "cache_creation":
		inside(s, func(name string) {
			switch name {
			case "ephemeral_5m_input_tokens":
				t.Write5m.Read(s)
			case "ephemeral_1h_input_tokens":
				t.Write1h.Read(s)
			default:
				s.Skip()
			}
		})
	case "output_tokens_details":
		inside(s, func(name string) {
			if name == "thinking_tokens" {
				t.Thinking.Read(s)
			} else {
				s.Skip()
			}
		})
	default:
		s.Skip()
	}
}

func (u *reported) readServerTools(s *jsonscan.Scanner) {
	inside(s, func(name string) {
		if name == "web_search_requests" { // fetches cost their tokens alone
			u.Searches.Read(s)
		} else {
			s.Skip()
		}
	})
}

// readIterations takes in the steps of an answer. Those of the answer itself are in its counts already.
func (u *reported) readIterations(s *jsonscan.Scanner) {
	if s.Kind() != '[' {
		s.Skip()
		return
	}
	u.beside, u.besideFlaw = governance.Quantities{}, false
	for s.Enter('['); s.Next(); {
		if s.Kind() != '{' {
			s.Skip()
			continue
		}
		var t tokens
		var beside bool
		for s.Enter('{'); s.Next(); {
			if name := string(s.Name()); name == "type" {
				kind := string(s.Text())
				beside = kind == "compaction" || kind == "advisor_message"
			} else {
				t.readMember(s, name)
			}
		}
		if !beside {
			continue
		}
		q, ok := t.quantities()
		u.besideFlaw = u.besideFlaw || !ok
		for unit, n := range q {
			u.beside[unit] += n
		}
	}
}

// inside reads the members of the next value, an object; anything else, null above all, is skipped.
func inside(s *jsonscan.Scanner, member func(name string)) {
	if s.Kind() != '{' {
		s.Skip()
		return
	}
	for s.Enter('{'); s.Next(); {
		member(string(s.Name()))
	}
}

// quantities returns the counts as disjoint quantities. ok is false where they make no sense.
func (t *tokens) quantities() (q governance.Quantities, ok bool) {
	for _, c := range []providers.Count{t.Input, t.CacheRead, t.CacheWrite, t.Write5m, t.Write1h, t.Output, t.Thinking} {
		if c.Bad {
			return q, false
		}
	}
	q[governance.UnitInput] = t.Input.N
	q[governance.UnitCacheRead] = t.CacheRead.N
	// What the breakdown by time to live does not name was written for the ordinary 5 minutes.
	q[governance.UnitCacheWrite1h] = t.Write1h.N
	q[governance.UnitCacheWrite5m] = max(t.CacheWrite.N-t.Write1h.N, t.Write5m.N)
	thinking := min(t.Thinking.N, t.Output.N)
	q[governance.UnitReasoning] = thinking
	q[governance.UnitOutput] = t.Output.N - thinking
	return q, true
}

// quantities returns everything that was reported. ok is false where it makes no sense.
func (u *reported) quantities() (q governance.Quantities, ok bool) {
	q, ok = u.tokens.quantities()
	if !ok || u.besideFlaw || u.Searches.Bad || !u.Input.Given && !u.CacheRead.Given && !u.CacheWrite.Given {
		return governance.Quantities{}, false
	}
	q[governance.UnitSearch] = u.Searches.N
	for unit, n := range u.beside {
		q[unit] += n
	}
	return q, true
}

const maxText = 256 // bytes of a name that is kept

func setText(into *string, text []byte) {
	if len(text) > 0 && len(text) <= maxText && *into != string(text) {
		*into = string(text)
	}
}
