package translate

import (
	"regexp"
	"strconv"
)

// version is the generation of a model, such as 4.6; zero where its name does not tell.
type version struct{ major, minor int }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// claudeName finds the generation in the names that Anthropic, Bedrock, Vertex and resellers give: claude-opus-4-6,
// claude-3-7-sonnet-20250219, anthropic/claude-sonnet-4.5. What follows a date is none.
var claudeName = regexp.MustCompile(`claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?:\D|$)`)

// claudeVersion reads the generation of Claude from a model's name.
func claudeVersion(model string) version {
	m := claudeName.FindStringSubmatch(model)
	if m == nil {
		return version{}
	}
	major, _ := strconv.Atoi(m[1]) // the expression takes digits alone
	minor, _ := strconv.Atoi(m[2]) // none is zero
	return version{major, minor}
}

// adaptive reports whether a model decides by itself how long it thinks, by an effort; older ones are given a budget.
// Anthropic has it since 4.6, and takes nothing else since 4.7.
func (v version) adaptive() bool { return v.atLeast(4, 6) }

// thinks reports whether a model can think at all: since 3.7. Names that do not tell are given the benefit of the doubt.
func (v version) thinks() bool { return v == version{} || v.atLeast(3, 7) }

// samples reports whether a model takes temperature, top_p and top_k: until 4.6.
func (v version) samples() bool { return !v.atLeast(4, 7) }

// samplesEither reports whether a model takes temperature or top_p, but not both: since 4.1.
func (v version) samplesEither() bool { return v.atLeast(4, 1) }
