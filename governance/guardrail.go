package governance

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// GuardrailStage says what a guardrail looks at.
type GuardrailStage string

// The stages.
const (
	StageRequest GuardrailStage = "request"
	StageAnswer  GuardrailStage = "answer"
	StageBoth    GuardrailStage = "both"
)

// Sees reports whether a guardrail of stage s looks at part, which is StageRequest or StageAnswer.
func (s GuardrailStage) Sees(part GuardrailStage) bool { return s == StageBoth || s == part }

// GuardrailAction says what becomes of what a guardrail finds.
type GuardrailAction string

// The actions.
const (
	ActionMask  GuardrailAction = "mask"  // takes its place, or lowers a limit
	ActionBlock GuardrailAction = "block" // ends the call
	ActionLog   GuardrailAction = "log"   // counts and tags, and changes nothing
)

// RuleType is what a guardrail looks for.
type RuleType string

// The types of rules.
const (
	RuleRegex     RuleType = "regex"      // RE2 expressions
	RuleKeywords  RuleType = "keywords"   // whole words, whatever their case
	RulePII       RuleType = "pii"        // personal data of some kinds
	RuleSecrets   RuleType = "secrets"    // credentials in well-known forms
	RuleMaxSize   RuleType = "max_size"   // bytes of all texts together
	RuleMaxTokens RuleType = "max_tokens" // the output limit that a client may ask for
	RuleWebhook   RuleType = "webhook"    // somebody else decides
)

// PIIKinds lists the kinds of personal data that RulePII knows.
func PIIKinds() []string {
	return []string{"email", "phone", "credit_card", "iban", "ip_address", "us_ssn"}
}

// GuardrailRule is what a guardrail looks for. Members that its type does not use are zero.
type GuardrailRule struct {
	Type     RuleType `json:"type"`
	Patterns []string `json:"patterns,omitempty"`   // RuleRegex
	Words    []string `json:"words,omitempty"`      // RuleKeywords
	Kinds    []string `json:"kinds,omitempty"`      // RulePII
	Bytes    int64    `json:"bytes,omitempty"`      // RuleMaxSize
	Tokens   int64    `json:"tokens,omitempty"`     // RuleMaxTokens
	URL      string   `json:"url,omitempty"`        // RuleWebhook
	Timeout  int64    `json:"timeout_ms,omitempty"` // RuleWebhook, in milliseconds
}

// Guardrail is a rule about what may be said to a model, or by one.
type Guardrail struct {
	Meta
	Organization Ref // zero: the platform's, in force for every organization
	Name         string
	// Team and Key narrow it to calls of one of the organization's; at most one is set.
	Team, Key Ref
	Models    []string // patterns over public model names; empty: every model
	Stage     GuardrailStage
	Rule      GuardrailRule
	Action    GuardrailAction
	// AllowOnError lets calls pass that the guardrail could not judge, which else are refused.
	AllowOnError bool
	Disabled     bool
	// Secret signs the calls of a webhook, which has to have one. It is write-only; zero keeps the stored one on update. In a
	// Catalog it is zero where it could not be opened.
	Secret   secret.String
	SecretOK bool // whether there is one that can be opened
}

// AppliesTo reports whether the guardrail is in force for calls of a principal to a public model.
func (g *Guardrail) AppliesTo(p *Principal, model string) bool {
	switch {
	case g.Disabled,
		g.Organization.Num != 0 && g.Organization.Num != p.Organization.Num,
		g.Team.Num != 0 && g.Team.Num != p.Team.Num,
		g.Key.Num != 0 && g.Key.Num != p.Key.Num:
		return false
	}
	return len(g.Models) == 0 || slices.ContainsFunc(g.Models, func(pattern string) bool { return MatchPattern(pattern, model) })
}

// Bounds of a guardrail's rule.
const (
	maxPatterns     = 50
	maxPatternBytes = 1 << 10
	maxProgram      = 10_000 // instructions of all compiled patterns of a rule together
	maxWords        = 1_000
	maxWordBytes    = 100
	minWebhook      = 10 * time.Millisecond
	maxWebhook      = 30 * time.Second
)

// Check returns an *InvalidError that names the member which is wrong, or nil.
func (g *Guardrail) Check() error {
	wrong := func(field, reason string) error { return &InvalidError{Field: field, Reason: reason} }
	switch {
	case !slices.Contains([]GuardrailStage{StageRequest, StageAnswer, StageBoth}, g.Stage):
		return wrong("stage", "is request, answer or both")
	case !slices.Contains([]GuardrailAction{ActionMask, ActionBlock, ActionLog}, g.Action):
		return wrong("action", "is mask, block or log")
	case g.Team.ID != "" && g.Key.ID != "":
		return wrong("scope", "is one team or one key")
	}
	r := g.Rule
	if field := r.foreign(); field != "" {
		return wrong("rule."+field, "does not belong to a rule of the type "+string(r.Type))
	}
	switch r.Type {
	case RuleRegex:
		if len(r.Patterns) == 0 || len(r.Patterns) > maxPatterns {
			return wrong("rule.patterns", fmt.Sprintf("has 1 to %d patterns", maxPatterns))
		}
		size := 0
		for i, p := range r.Patterns {
			n, err := checkPattern(p)
			if size += n; err == nil && size > maxProgram {
				err = fmt.Errorf("makes the rule larger than %d instructions: repetitions such as {1,200} count as often as they may occur", maxProgram)
			}
			if err != nil {
				return wrong(fmt.Sprintf("rule.patterns[%d]", i), err.Error())
			}
		}
	case RuleKeywords:
		if len(r.Words) == 0 || len(r.Words) > maxWords {
			return wrong("rule.words", fmt.Sprintf("has 1 to %d words", maxWords))
		}
		for i, w := range r.Words {
			if strings.TrimSpace(w) == "" || len(w) > maxWordBytes {
				return wrong(fmt.Sprintf("rule.words[%d]", i), fmt.Sprintf("has 1 to %d bytes", maxWordBytes))
			}
		}
	case RulePII:
		if len(r.Kinds) == 0 {
			return wrong("rule.kinds", "names at least one of "+strings.Join(PIIKinds(), ", "))
		}
		for i, k := range r.Kinds {
			if !slices.Contains(PIIKinds(), k) {
				return wrong(fmt.Sprintf("rule.kinds[%d]", i), "is none of "+strings.Join(PIIKinds(), ", "))
			}
		}
	case RuleSecrets:
	case RuleMaxSize:
		if r.Bytes < 1 {
			return wrong("rule.bytes", "is at least 1")
		}
		if g.Action == ActionMask {
			return wrong("action", "is block or log for a rule of size: there is nothing to mask")
		}
	case RuleMaxTokens:
		if r.Tokens < 1 || r.Tokens > MaxTokens {
			return wrong("rule.tokens", fmt.Sprintf("is 1 to %d", int64(MaxTokens)))
		}
		if g.Stage != StageRequest {
			return wrong("stage", "is request for a rule of max_tokens: it is about what a client asks for")
		}
	case RuleWebhook:
		if t := time.Duration(r.Timeout) * time.Millisecond; r.Timeout != 0 && (t < minWebhook || t > maxWebhook) {
			return wrong("rule.timeout_ms", "is 10 to 30000")
		}
		if r.URL == "" {
			return wrong("rule.url", "is missing")
		}
	default:
		return wrong("rule.type", "is none of regex, keywords, pii, secrets, max_size, max_tokens, webhook")
	}
	return nil
}

// foreign names a member that the rule's type does not use; "": there is none.
func (r *GuardrailRule) foreign() string {
	for _, m := range []struct {
		name  string
		given bool
		of    RuleType
	}{
		{"patterns", len(r.Patterns) > 0, RuleRegex},
		{"words", len(r.Words) > 0, RuleKeywords},
		{"kinds", len(r.Kinds) > 0, RulePII},
		{"bytes", r.Bytes != 0, RuleMaxSize},
		{"tokens", r.Tokens != 0, RuleMaxTokens},
		{"url", r.URL != "", RuleWebhook},
		{"timeout_ms", r.Timeout != 0, RuleWebhook},
	} {
		if m.given && m.of != r.Type {
			return m.name
		}
	}
	return ""
}

// checkPattern returns the instructions of a pattern. It refuses what cannot be compiled, or makes no sense in a text that comes in
// pieces.
func checkPattern(p string) (size int, err error) {
	if p == "" || len(p) > maxPatternBytes {
		return 0, fmt.Errorf("has 1 to %d bytes", maxPatternBytes)
	}
	parsed, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		return 0, errors.New("is no RE2 expression: " + err.Error())
	}
	if anchored(parsed) {
		return 0, errors.New("must not use ^, $, \\A or \\z without (?m): texts come in pieces")
	}
	if shortest(parsed) == 0 {
		return 0, errors.New("must not match the empty text")
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, errors.New("is no RE2 expression: " + err.Error())
	}
	return len(prog.Inst), nil
}

// shortest returns the runes of the shortest text that an expression matches.
func shortest(re *syntax.Regexp) int {
	sum := func() (n int) {
		for _, part := range re.Sub {
			n += shortest(part)
		}
		return n
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL, syntax.OpNoMatch:
		return 1
	case syntax.OpCapture, syntax.OpConcat, syntax.OpPlus:
		return sum()
	case syntax.OpRepeat:
		return re.Min * sum()
	case syntax.OpAlternate:
		least := shortest(re.Sub[0])
		for _, part := range re.Sub[1:] {
			least = min(least, shortest(part))
		}
		return least
	}
	return 0
}

func anchored(re *syntax.Regexp) bool {
	if re.Op == syntax.OpBeginText || re.Op == syntax.OpEndText {
		return true
	}
	return slices.ContainsFunc(re.Sub, anchored)
}
