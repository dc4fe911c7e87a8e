package openai

import (
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
)

// count is a number of tokens: a whole number of at least 0 that is not absurd, or absent, or nonsense.
type count struct {
	n     int64
	given bool
	bad   bool
}

// count reads the next value; null is none. It never fails, so that one odd member does not hide the others.
func (s *scanner) count(into *count) {
	raw := string(s.raw())
	if raw == "null" || s.fault {
		return
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	*into = count{n: n, given: true, bad: err != nil || n < 0 || n > governance.MaxTokens}
}

// details is the breakdown of one side, under the names of all dialects.
type details struct {
	Cached, CacheWrite, Audio, Image, Reasoning count
}

// details reads the next value, an object or null.
func (s *scanner) details(into *details) {
	if s.kind() == 'n' {
		s.skip()
		return
	}
	for s.enter('{'); s.next(); {
		switch string(s.name()) {
		case "cached_tokens":
			s.count(&into.Cached)
		case "cache_write_tokens":
			s.count(&into.CacheWrite)
		case "audio_tokens":
			s.count(&into.Audio)
		case "image_tokens":
			s.count(&into.Image)
		case "reasoning_tokens":
			s.count(&into.Reasoning)
		default:
			s.skip()
		}
	}
}

// reported is a usage object of the chat, completions, embeddings or responses dialect, with the places where compatible
// upstreams put what OpenAI has in the details.
type reported struct {
	Prompt, Input, Completion, Output, Total                      count
	PromptDetails, InputDetails, CompletionDetails, OutputDetails details

	Cached     count // Moonshot
	CacheHit   count // DeepSeek
	CacheRead  count // Anthropic behind a compatible front
	CacheWrite count // the same
	Reasoning  count // Perplexity
}

// read reads a usage object and reports whether it is one.
func (u *reported) read(s *scanner, raw []byte) bool {
	s.reset(raw)
	for s.enter('{'); s.next(); {
		switch string(s.name()) {
		case "prompt_tokens":
			s.count(&u.Prompt)
		case "input_tokens":
			s.count(&u.Input)
		case "completion_tokens":
			s.count(&u.Completion)
		case "output_tokens":
			s.count(&u.Output)
		case "total_tokens":
			s.count(&u.Total)
		case "prompt_tokens_details":
			s.details(&u.PromptDetails)
		case "input_tokens_details":
			s.details(&u.InputDetails)
		case "completion_tokens_details":
			s.details(&u.CompletionDetails)
		case "output_tokens_details":
			s.details(&u.OutputDetails)
		case "cached_tokens":
			s.count(&u.Cached)
		case "prompt_cache_hit_tokens":
			s.count(&u.CacheHit)
		case "cache_read_input_tokens":
			s.count(&u.CacheRead)
		case "cache_creation_input_tokens":
			s.count(&u.CacheWrite)
		case "reasoning_tokens":
			s.count(&u.Reasoning)
		default:
			s.skip()
		}
	}
	return s.end()
}

// parseUsage turns a usage object into disjoint quantities whose sum is the total. ok is false where it makes no sense: it
// has neither side, or a count is negative, no whole number or absurd.
//
// Cached, audio and image tokens are parts of the prompt, and reasoning, audio and image tokens are parts of the answer.
// Upstreams that count a part outside of it are known by their total, or by a part that is larger than the whole.
func parseUsage(s *scanner, raw []byte) (q governance.Quantities, ok bool) {
	var u reported
	if !u.read(s, raw) || u.nonsense() {
		return q, false
	}
	prompt, hasPrompt := first(u.Prompt, u.Input)
	answer, hasAnswer := first(u.Completion, u.Output)
	switch {
	case !hasPrompt:
		return q, false
	case !hasAnswer && !u.Total.given:
		return q, false
	case !hasAnswer:
		answer = max(u.Total.n-prompt, 0)
	}

	read := most(u.PromptDetails.Cached, u.InputDetails.Cached, u.Cached, u.CacheHit, u.CacheRead)
	write := most(u.PromptDetails.CacheWrite, u.InputDetails.CacheWrite, u.CacheWrite)
	cached := read + write
	if cached > prompt || cached > 0 && u.Total.given && u.Total.n == prompt+cached+answer {
		prompt += cached // it was counted outside
	}
	reasoning := most(u.CompletionDetails.Reasoning, u.OutputDetails.Reasoning, u.Reasoning)
	if reasoning > answer || reasoning > 0 && u.Total.given && u.Total.n == prompt+answer+reasoning {
		answer += reasoning
	}

	rest := prompt - cached
	q[governance.UnitCacheRead] = read
	q[governance.UnitCacheWrite5m] = write
	q[governance.UnitInputAudio] = take(&rest, most(u.PromptDetails.Audio, u.InputDetails.Audio))
	q[governance.UnitInputImage] = take(&rest, most(u.PromptDetails.Image, u.InputDetails.Image))
	q[governance.UnitInput] = rest

	rest = answer
	q[governance.UnitReasoning] = take(&rest, reasoning)
	q[governance.UnitOutputAudio] = take(&rest, most(u.CompletionDetails.Audio, u.OutputDetails.Audio))
	q[governance.UnitOutputImage] = take(&rest, most(u.CompletionDetails.Image, u.OutputDetails.Image))
	q[governance.UnitOutput] = rest
	return q, true
}

func (u *reported) nonsense() bool {
	for _, c := range []count{
		u.Prompt, u.Input, u.Completion, u.Output, u.Total,
		u.Cached, u.CacheHit, u.CacheRead, u.CacheWrite, u.Reasoning,
	} {
		if c.bad {
			return true
		}
	}
	for _, d := range []*details{&u.PromptDetails, &u.InputDetails, &u.CompletionDetails, &u.OutputDetails} {
		if d.Cached.bad || d.CacheWrite.bad || d.Audio.bad || d.Image.bad || d.Reasoning.bad {
			return true
		}
	}
	return false
}

func first(counts ...count) (n int64, given bool) {
	for _, c := range counts {
		if c.given {
			return c.n, true
		}
	}
	return 0, false
}

// most returns the largest of the places in which one count may stand.
func most(counts ...count) int64 {
	var n int64
	for _, c := range counts {
		n = max(n, c.n)
	}
	return n
}

// take moves up to n from rest.
func take(rest *int64, n int64) int64 {
	n = min(n, *rest)
	*rest -= n
	return n
}
