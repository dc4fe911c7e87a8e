package gemini

import (
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/providers"
)

// modalities are counts of tokens by what they stand for. Text, video and documents are priced as text.
type modalities struct {
	Audio, Image int64
	Bad          bool
}

// reported is a usageMetadata. What a cache served is a part of the prompt; thoughts stand beside the candidates, and what
// tools brought in stands beside the prompt.
type reported struct {
	Prompt, Cached, ToolPrompt, Candidates, Thoughts, Total   providers.Count
	PromptParts, CachedParts, ToolPromptParts, CandidateParts modalities
}

// quantities returns the counts, which must make sense, as disjoint quantities.
func (u *reported) quantities() (q governance.Quantities) {
	// Cached tokens of a kind are among the prompt's tokens of that kind, and are read, not put in anew.
	cached := min(u.Cached.N, u.Prompt.N)
	rest := u.Prompt.N - cached
	audio := take(&rest, max(u.PromptParts.Audio-u.CachedParts.Audio, 0))
	image := take(&rest, max(u.PromptParts.Image-u.CachedParts.Image, 0))
	tools := u.ToolPrompt.N
	audio += take(&tools, u.ToolPromptParts.Audio)
	image += take(&tools, u.ToolPromptParts.Image)
	q[governance.UnitInput] = rest + tools
	q[governance.UnitCacheRead] = cached
	q[governance.UnitInputAudio] = audio
	q[governance.UnitInputImage] = image

	rest = u.Candidates.N
	if !u.Candidates.Given {
		rest = max(u.Total.N-u.Prompt.N-u.ToolPrompt.N-u.Thoughts.N, 0)
	}
	q[governance.UnitOutputAudio] = take(&rest, u.CandidateParts.Audio)
	q[governance.UnitOutputImage] = take(&rest, u.CandidateParts.Image)
	q[governance.UnitOutput] = rest
	q[governance.UnitReasoning] = u.Thoughts.N
	return q
}

// read takes in a usageMetadata and reports whether it was one.
func (u *reported) read(s *jsonscan.Scanner, raw []byte) bool {
	s.Reset(raw)
	for s.Enter('{'); s.Next(); {
		switch string(s.Name()) {
		case "promptTokenCount":
			u.Prompt.Read(s)
		case "cachedContentTokenCount":
			u.Cached.Read(s)
		case "toolUsePromptTokenCount":
			u.ToolPrompt.Read(s)
		case "candidatesTokenCount":
			u.Candidates.Read(s)
		case "thoughtsTokenCount":
			u.Thoughts.Read(s)
		case "totalTokenCount":
			u.Total.Read(s)
		case "promptTokensDetails":
			u.PromptParts.read(s)
		case "cacheTokensDetails":
			u.CachedParts.read(s)
		case "toolUsePromptTokensDetails":
			u.ToolPromptParts.read(s)
		case "candidatesTokensDetails":
			u.CandidateParts.read(s)
		default:
			s.Skip()
		}
	}
	return s.End()
}

// read adds up a list of {"modality":"AUDIO","tokenCount":1}; anything else, null above all, is skipped.
func (m *modalities) read(s *jsonscan.Scanner) {
	*m = modalities{}
	s.Each('[', func() {
		var kind string
		var count providers.Count
		s.Each('{', func() {
			switch string(s.Name()) {
			case "modality":
				kind = string(s.Text())
			case "tokenCount":
				count.Read(s)
			default:
				s.Skip()
			}
		})
		m.Bad = m.Bad || count.Bad
		switch {
		case count.Bad:
		case kind == "AUDIO":
			m.Audio = min(m.Audio+count.N, governance.MaxTokens)
		case kind == "IMAGE":
			m.Image = min(m.Image+count.N, governance.MaxTokens)
		}
	})
}

// nonsense reports whether the prompt is not counted, or a count is negative, no whole number or absurd.
func (u *reported) nonsense() bool {
	for _, c := range []providers.Count{u.Prompt, u.Cached, u.ToolPrompt, u.Candidates, u.Thoughts, u.Total} {
		if c.Bad {
			return true
		}
	}
	return !u.Prompt.Given || u.PromptParts.Bad || u.CachedParts.Bad || u.ToolPromptParts.Bad || u.CandidateParts.Bad
}

// take moves up to n from rest.
func take(rest *int64, n int64) int64 {
	n = min(n, *rest)
	*rest -= n
	return n
}
