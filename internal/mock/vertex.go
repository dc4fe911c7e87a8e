package mock

import "strings"

// claudeOnVertex returns the model that a path of Vertex AI names for Claude's models, and the resource of Anthropic's API that
// it stands for. ok is false for others.
func claudeOnVertex(path string) (model, resource string, ok bool) {
	_, name, found := strings.Cut(path, "/publishers/anthropic/models/")
	if !found {
		return "", "", false
	}
	if model, ok = strings.CutSuffix(name, ":streamRawPredict"); !ok {
		model, ok = strings.CutSuffix(name, ":rawPredict")
	}
	if model == "count-tokens" {
		return "", "/messages/count_tokens", ok
	}
	return model, "/messages", ok
}
