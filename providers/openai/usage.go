package openai

import (
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/providers"
)

// details is the breakdown of one side, under the names of all dialects.
type details struct {
	Cached, CacheWrite, Audio, Image, Reasoning providers.Count
}

// readDetails takes the next value of s, an object or null.
func readDetails(s *jsonscan.Scanner, into *details) {
	if s.Kind() == 'n' {
		s.Skip()
		return
	}
	for s.Enter('{'); s.Next(); {
		switch string(s.Name()) {
		case "cached_tokens":
			into.Cached.Read(s)
		case "cache_write_tokens":
			into.CacheWrite.Read(s)
		case "audio_tokens":
			into.Audio.Read(s)
		case "image_tokens":
			into.Image.Read(s)
		case "reasoning_tokens":
			into.Reasoning.Read(s)
		default:
			s.Skip()
		}
	}
}

// reported is a usage object of the chat, completions, embeddings or responses dialect, with the places where compatible
// upstreams put what OpenAI has in the details.
type reported struct {
	Prompt, Input, Completion, Output, Total                      providers.Count
	PromptDetails, InputDetails, CompletionDetails, OutputDetails details

	Cached     providers.Count // Moonshot
	CacheHit   providers.Count // DeepSeek
	CacheRead  providers.Count // Anthropic behind a compatible front
	CacheWrite providers.Count // the same
	Reasoning  providers.Count // Perplexity
	Searches   providers.Count // the same, by the piece
	heard      bool            // Mistral counts sound that was heard in the total alone
}

// read reads a usage object and reports whether it is one.
func (u *reported) read(s *jsonscan.Scanner, raw []byte) bool {
	s.Reset(raw)
	for s.Enter('{'); s.Next(); {
		switch string(s.Name()) {
		case "prompt_tokens":
			u.Prompt.Read(s)
		case "input_tokens":
			u.Input.Read(s)
		case "completion_tokens":
			u.Completion.Read(s)
		case "output_tokens":
			u.Output.Read(s)
		case "total_tokens":
			u.Total.Read(s)
		case "prompt_tokens_details":
			readDetails(s, &u.PromptDetails)
		case "input_tokens_details", "input_token_details": // the latter of transcriptions
			readDetails(s, &u.InputDetails)
		case "completion_tokens_details":
			readDetails(s, &u.CompletionDetails)
		case "output_tokens_details":
			readDetails(s, &u.OutputDetails)
		case "cached_tokens":
			u.Cached.Read(s)
		case "prompt_cache_hit_tokens":
			u.CacheHit.Read(s)
		case "cache_read_input_tokens":
			u.CacheRead.Read(s)
		case "cache_creation_input_tokens":
			u.CacheWrite.Read(s)
		case "reasoning_tokens":
			u.Reasoning.Read(s)
		case "prompt_audio_seconds":
			u.heard = s.Kind() != 'n'
			s.Skip()
		case "num_search_queries":
			u.Searches.Read(s)
		default:
			s.Skip()
		}
	}
	return s.End()
}

// parseUsage turns a usage object into disjoint quantities whose sum is the total. ok is false where it makes no sense: it
// has neither side, or a count is negative, no whole number or absurd.
//
// Cached, audio and image tokens are parts of the prompt, and reasoning, audio and image tokens are parts of the answer.
// Upstreams that count a part outside of it are known by their total, or by a part that is larger than the whole.
//
// thinks says that what stands in the total alone was thought: Google's compatible API and others name it nowhere else.
func parseUsage(s *jsonscan.Scanner, raw []byte, thinks bool) (q governance.Quantities, ok bool) {
	var u reported
	if !u.read(s, raw) || u.nonsense() {
		return q, false
	}
	prompt, hasPrompt := first(u.Prompt, u.Input)
	answer, hasAnswer := first(u.Completion, u.Output)
	switch {
	case !hasPrompt:
		return q, false
	case !hasAnswer && !u.Total.Given:
		return q, false
	case !hasAnswer:
		answer = max(u.Total.N-prompt, 0)
	}

	read := most(u.PromptDetails.Cached, u.InputDetails.Cached, u.Cached, u.CacheHit, u.CacheRead)
	write := most(u.PromptDetails.CacheWrite, u.InputDetails.CacheWrite, u.CacheWrite)
	cached := read + write
	if cached > prompt || cached > 0 && u.Total.Given && u.Total.N == prompt+cached+answer {
		prompt += cached // it was counted outside
	}
	reasoning := most(u.CompletionDetails.Reasoning, u.OutputDetails.Reasoning, u.Reasoning)
	if reasoning > answer || reasoning > 0 && u.Total.Given && u.Total.N == prompt+answer+reasoning {
		answer += reasoning
	}
	if unnamed := u.Total.N - prompt - answer; thinks && !u.heard && unnamed > 0 {
		answer += unnamed
		reasoning += unnamed
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
	q[governance.UnitSearch] = u.Searches.N
	return q, true
}

func (u *reported) nonsense() bool {
	for _, c := range []providers.Count{
		u.Prompt, u.Input, u.Completion, u.Output, u.Total,
		u.Cached, u.CacheHit, u.CacheRead, u.CacheWrite, u.Reasoning, u.Searches,
	} {
		if c.Bad {
			return true
		}
	}
	for _, d := range []*details{&u.PromptDetails, &u.InputDetails, &u.CompletionDetails, &u.OutputDetails} {
		if d.Cached.Bad || d.CacheWrite.Bad || d.Audio.Bad || d.Image.Bad || d.Reasoning.Bad {
			return true
		}
	}
	return false
}

func first(counts ...providers.Count) (n int64, given bool) {
	for _, c := range counts {
		if c.Given {
			return c.N, true
		}
	}
	return 0, false
}

// most returns the largest of the places in which one count may stand.
func most(counts ...providers.Count) int64 {
	var n int64
	for _, c := range counts {
		n = max(n, c.N)
	}
	return n
}

// take moves up to n from rest.
func take(rest *int64, n int64) int64 {
	n = min(n, *rest)
	*rest -= n
	return n
}
