package openai

import (
	"encoding/json"
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
)

// count is a number of tokens: a whole number of at least 0 that is not absurd, or absent, or nonsense.
type count struct {
	n     int64
	given bool
	bad   bool
}

// UnmarshalJSON never fails, so that one odd member does not hide the others.
func (c *count) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	*c = count{n: n, given: true, bad: err != nil || n < 0 || n > governance.MaxTokens}
	return nil //nolint:nilerr // noted in bad
}

// details is the breakdown of one side, under the names of all dialects.
type details struct {
	Cached     count `json:"cached_tokens"`
	CacheWrite count `json:"cache_write_tokens"`
	Audio      count `json:"audio_tokens"`
	Image      count `json:"image_tokens"`
	Reasoning  count `json:"reasoning_tokens"`
}

// reported is a usage object of the chat, completions, embeddings or responses dialect, with the places where compatible
// upstreams put what OpenAI has in the details.
type reported struct {
	Prompt            count   `json:"prompt_tokens"`
	Input             count   `json:"input_tokens"`
	Completion        count   `json:"completion_tokens"`
	Output            count   `json:"output_tokens"`
	Total             count   `json:"total_tokens"`
	PromptDetails     details `json:"prompt_tokens_details"`
	InputDetails      details `json:"input_tokens_details"`
	CompletionDetails details `json:"completion_tokens_details"`
	OutputDetails     details `json:"output_tokens_details"`

	Cached     count `json:"cached_tokens"`               // Moonshot
	CacheHit   count `json:"prompt_cache_hit_tokens"`     // DeepSeek
	CacheRead  count `json:"cache_read_input_tokens"`     // Anthropic behind a compatible front
	CacheWrite count `json:"cache_creation_input_tokens"` // the same
	Reasoning  count `json:"reasoning_tokens"`            // Perplexity
}

// parseUsage turns a usage object into disjoint quantities whose sum is the total. ok is false where it makes no sense: it
// has neither side, or a count is negative, no whole number or absurd.
//
// Cached, audio and image tokens are parts of the prompt, and reasoning, audio and image tokens are parts of the answer.
// Upstreams that count a part outside of it are known by their total, or by a part that is larger than the whole.
func parseUsage(raw []byte) (q governance.Quantities, ok bool) {
	var u reported
	if json.Unmarshal(raw, &u) != nil || u.nonsense() {
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
