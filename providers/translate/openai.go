package translate

import (
	"regexp"
	"strings"
)

// openaiReasons matches the names of OpenAI's models that reason: o1, o3-mini, gpt-5.1 and what came after them.
var openaiReasons = regexp.MustCompile(`^(?:o\d|gpt-(?:[5-9]|\d\d)|codex)`)

// openaiModel tells what may be asked of a model by its name: dialects are shared, parameters are not, and an upstream
// answers 400 to one that its model does not take.
type openaiModel struct {
	own     bool // OpenAI's
	reasons bool // takes reasoning_effort
}

func openaiModelOf(name string) openaiModel {
	name = name[strings.LastIndexByte(name, '/')+1:]
	reasons := openaiReasons.MatchString(name) && !strings.HasPrefix(name, "gpt-35") // as Azure writes GPT-3.5
	open := strings.HasPrefix(name, "gpt-oss")
	return openaiModel{
		own:     !open && (reasons || strings.HasPrefix(name, "gpt-") || strings.HasPrefix(name, "chatgpt-")),
		reasons: reasons || open,
	}
}

// maxTokens puts an output limit where a model takes it: OpenAI's have a name of their own for it.
func (m openaiModel) maxTokens(out *chatRequest, limit raw) {
	if m.own {
		out.MaxCompletionTokens = limit
	} else {
		out.MaxTokens = limit
	}
}
