package governance

// MaxPattern is the length in bytes of the longest model pattern; stores refuse longer ones.
const MaxPattern = 256

// MatchPattern reports whether a model pattern covers a name. In a pattern "*" stands for any run of bytes, the empty one
// included; every other byte stands for itself, and case counts. It takes time proportional to pattern × name at worst and
// no memory.
func MatchPattern(pattern, name string) bool {
	p, n := 0, 0
	star, resume := -1, 0 // the last star, and the part of name behind what it has swallowed
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			resume++
			p, n = star+1, resume
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// Covers reports whether one of the patterns of a limit covers a name: none at all cover every name.
func Covers(patterns []string, name string) bool {
	return len(patterns) == 0 || matchesAny(patterns, name)
}

// Allows reports whether the model list of a key or a team allows a name: nil allows every name, an empty list none.
func Allows(patterns []string, name string) bool {
	return patterns == nil || matchesAny(patterns, name)
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if MatchPattern(p, name) {
			return true
		}
	}
	return false
}

// MayUse reports whether the key's own list and its team's both allow a public model name.
func (p *Principal) MayUse(model string) bool {
	return Allows(p.KeyModels, model) && Allows(p.TeamModels, model)
}
