package translate

import (
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// count is a number of tokens. What an upstream sends in its place that is no such number leaves it as it was, so that an
// odd usage never costs an answer.
type count int64

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (c *count) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	value, err := dec.ReadValue()
	if err != nil {
		return err
	}
	if n, err := strconv.ParseInt(string(value), 10, 64); err == nil && n >= 0 {
		*c = count(n)
	}
	return nil
}

// read updates a usage by what is given of another.
func read[U any](into *U, usage raw) {
	if len(usage) == 0 || usage[0] != '{' {
		return
	}
	if updated := *into; json.Unmarshal(usage, &updated, options) == nil {
		*into = updated
	}
}

// chat returns the usage as the chat dialect counts it: the prompt includes the caches.
func (u messagesUsage) chat() chatUsage {
	out := chatUsage{
		PromptTokens:     u.InputTokens + u.CacheReadTokens + u.CacheCreationTokens,
		CompletionTokens: u.OutputTokens,
		PromptDetails:    chatPromptDetails{CachedTokens: u.CacheReadTokens, CacheWriteTokens: u.CacheCreationTokens},
	}
	out.TotalTokens = out.PromptTokens + out.CompletionTokens
	if u.Details != nil {
		out.Details.ReasoningTokens = u.Details.ThinkingTokens
	}
	return out
}

// messages returns the usage as Anthropic counts it: what a cache served or took is apart from the input. An upstream that
// counts it apart already is known by a part that is larger than the whole.
func (u chatUsage) messages() messagesUsage {
	hit := max(u.PromptDetails.CachedTokens, u.CacheHit, u.Cached)
	cached := hit + u.PromptDetails.CacheWriteTokens
	out := messagesUsage{
		InputTokens:         u.PromptTokens,
		CacheReadTokens:     hit,
		CacheCreationTokens: u.PromptDetails.CacheWriteTokens,
		OutputTokens:        u.CompletionTokens,
	}
	if cached <= u.PromptTokens {
		out.InputTokens -= cached
	}
	if u.Details.ReasoningTokens > 0 {
		out.Details = &messagesDetails{ThinkingTokens: u.Details.ReasoningTokens}
	}
	return out
}

// chat returns the usage in the chat dialect's words.
func (u responsesUsage) chat() chatUsage {
	return chatUsage{
		PromptTokens: u.InputTokens, CompletionTokens: u.OutputTokens, TotalTokens: max(u.TotalTokens, u.InputTokens+u.OutputTokens),
		PromptDetails: u.InputDetails, Details: u.Details,
	}
}

// responses returns the usage in the responses dialect's words.
func (u chatUsage) responses() responsesUsage {
	out := responsesUsage{
		InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: max(u.TotalTokens, u.PromptTokens+u.CompletionTokens),
		InputDetails: u.PromptDetails, Details: u.Details,
	}
	out.InputDetails.CachedTokens = max(u.PromptDetails.CachedTokens, u.CacheHit, u.Cached)
	return out
}
