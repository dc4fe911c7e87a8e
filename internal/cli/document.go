package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// document is what a file of `tollgate apply` may say. What it leaves out is not managed.
type document struct {
	Organizations []docOrganization `yaml:"organizations"`
	Providers     []docProvider     `yaml:"providers"`
	Models        []docModel        `yaml:"models"`
	Limits        []docLimit        `yaml:"limits"`
	Guardrails    []docGuardrail    `yaml:"guardrails"`
	Prices        []docPrice        `yaml:"prices"`
}

type docOrganization struct {
	Name          string    `yaml:"name" json:"name"`
	Blocked       *bool     `yaml:"blocked" json:"blocked,omitempty"`
	BudgetStatus  *int      `yaml:"budget_status" json:"budget_status,omitempty"`
	RequireBudget *bool     `yaml:"require_budget" json:"require_budget,omitempty"`
	Require       *[]string `yaml:"require" json:"require,omitempty"`
	Limits        []docRule `yaml:"limits" json:"-"`
	Users         []docUser `yaml:"users" json:"-"`
	Teams         []docTeam `yaml:"teams" json:"-"`
	Keys          []docKey  `yaml:"keys" json:"-"`
}

type docUser struct {
	Name    string  `yaml:"name" json:"name"`
	Email   *string `yaml:"email" json:"email,omitempty"`
	Blocked *bool   `yaml:"blocked" json:"blocked,omitempty"`
}

type docTeam struct {
	Name    string    `yaml:"name" json:"name"`
	Blocked *bool     `yaml:"blocked" json:"blocked,omitempty"`
	Models  *[]string `yaml:"models" json:"models,omitempty"`
	Limits  []docRule `yaml:"limits" json:"-"`
	Keys    []docKey  `yaml:"keys" json:"-"`
}

type docKey struct {
	Name         string    `yaml:"name" json:"name"`
	Blocked      *bool     `yaml:"blocked" json:"blocked,omitempty"`
	Models       *[]string `yaml:"models" json:"models,omitempty"`
	ExpiresAt    *string   `yaml:"expires_at" json:"expires_at,omitempty"`
	BudgetStatus *int      `yaml:"budget_status" json:"budget_status,omitempty"`
	Limits       []docRule `yaml:"limits" json:"-"`
}

type docWindow struct {
	Type     string `yaml:"type" json:"type"`
	Period   string `yaml:"period" json:"period,omitempty"`
	TimeZone string `yaml:"time_zone" json:"time_zone,omitempty"`
	Duration string `yaml:"duration" json:"duration,omitempty"`
}

// docRule is a limit whose scope follows from where it stands.
type docRule struct {
	Kind        string     `yaml:"kind" json:"kind"`
	Metric      string     `yaml:"metric" json:"metric,omitempty"`
	Amount      *string    `yaml:"amount" json:"amount,omitempty"`
	Per         string     `yaml:"per" json:"per,omitempty"`
	Burst       *string    `yaml:"burst" json:"burst,omitempty"`
	Window      *docWindow `yaml:"window" json:"window,omitempty"`
	CarryDebt   *bool      `yaml:"carry_debt" json:"carry_debt,omitempty"`
	Models      []string   `yaml:"models" json:"models,omitempty"`
	Routes      []string   `yaml:"routes" json:"routes,omitempty"`
	Reserve     *string    `yaml:"reserve" json:"reserve,omitempty"`
	Enforcement *string    `yaml:"enforcement" json:"enforcement,omitempty"`
	Mode        *string    `yaml:"mode" json:"mode,omitempty"`
	Thresholds  *[]int     `yaml:"thresholds" json:"thresholds,omitempty"`
	StartsAt    *string    `yaml:"starts_at" json:"starts_at,omitempty"`
	ExpiresAt   *string    `yaml:"expires_at" json:"expires_at,omitempty"`
	Reason      *string    `yaml:"reason" json:"reason,omitempty"`
}

// docLimit is a limit on the whole platform, or on each member of a scope.
type docLimit struct {
	docRule `yaml:",inline"`

	Scope        docScope `yaml:"scope" json:"-"`
	Organization string   `yaml:"organization" json:"-"`
}

type docScope struct {
	Type string `yaml:"type"`
	Name string `yaml:"name"` // a name, or *
}

// docGuardrail is a guardrail of the platform, or of what its scope names.
type docGuardrail struct {
	Name    string         `yaml:"name" json:"name"`
	Scope   docScope       `yaml:"scope" json:"-"` // absent: the platform
	Models  *[]string      `yaml:"models" json:"models,omitempty"`
	Stage   *string        `yaml:"stage" json:"stage,omitempty"`
	Rule    map[string]any `yaml:"rule" json:"rule"` // as in the API
	Action  string         `yaml:"action" json:"action"`
	OnError *string        `yaml:"on_error" json:"on_error,omitempty"`
	Enabled *bool          `yaml:"enabled" json:"enabled,omitempty"`
	Secret  string         `yaml:"secret" json:"-"`
}

type docProvider struct {
	Name          string  `yaml:"name" json:"name"`
	Organization  string  `yaml:"organization" json:"-"`
	Kind          string  `yaml:"kind" json:"kind,omitempty"`
	BaseURL       string  `yaml:"base_url" json:"base_url,omitempty"`
	PriceProvider *string `yaml:"price_provider" json:"price_provider,omitempty"`
	Credential    string  `yaml:"credential" json:"-"`
}

type docModel struct {
	Name         string      `yaml:"name" json:"name"`
	Organization string      `yaml:"organization" json:"-"`
	Targets      []docTarget `yaml:"targets" json:"-"`
}

type docTarget struct {
	Provider      string `yaml:"provider"`
	UpstreamModel string `yaml:"upstream_model"`
	Weight        int    `yaml:"weight"`
	Priority      int    `yaml:"priority"`
}

type docPrice struct {
	Provider      string            `yaml:"provider"`
	UpstreamModel string            `yaml:"upstream_model"`
	Free          bool              `yaml:"free"`
	USDPerMillion map[string]string `yaml:"usd_per_million"`
	EffectiveFrom string            `yaml:"effective_from"`
}

// bodyOf is the body that creates what d describes, without what stands below it.
func bodyOf(d any) (object, error) {
	encoded, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	var body object
	if err := decode(encoded, &body); err != nil {
		return nil, err
	}
	for member, v := range body {
		if v == wordUnlimited && member == "amount" || v == wordNever && member == "expires_at" {
			body[member] = nil
		}
	}
	return body, nil
}

// readDocument reads a file, or standard input where path is "-". Unknown members are errors, with their line.
func readDocument(path string, stdin io.Reader) (*document, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(stdin)
	} else {
		text, err = os.ReadFile(path) //nolint:gosec // whoever runs the command names the file
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	doc, err := parseDocument(text, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}

func parseDocument(text []byte, dir string) (*document, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, plainYAMLError(err)
	}
	if err := substitute(&root, dir); err != nil {
		return nil, err
	}
	// The tree was changed, so the strict decoder reads what it says now; lines are those of the tree.
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(new(document)); err != nil && !errors.Is(err, io.EOF) {
		return nil, plainYAMLError(err)
	}
	if err := decoder.Decode(new(document)); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one document; put everything into one")
	}
	doc := &document{}
	if err := root.Decode(doc); err != nil && len(root.Content) > 0 {
		return nil, plainYAMLError(err)
	}
	if err := checkAmounts(&root); err != nil {
		return nil, err
	}
	return doc, nil
}

// checkAmounts refuses amounts and prices that the API would refuse, so that no plan promises them. YAML reads .nan and 1e3
// as numbers; amounts are plain decimals, and whole where no money is counted.
func checkAmounts(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		for _, c := range n.Content {
			if err := checkAmounts(c); err != nil {
				return err
			}
		}
		return nil
	}
	digits := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "metric" && n.Content[i+1].Value == string(governance.MetricCost) {
			digits = moneyDigits
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		member, value := n.Content[i].Value, n.Content[i+1]
		var err error
		switch {
		case member == "amount" && value.Value == wordUnlimited, value.Tag == "!!null":
		case member == "amount", member == "burst":
			err = checkAmount(member, value, digits)
		case member == "usd_per_million" && value.Kind == yaml.MappingNode:
			for j := 0; j+1 < len(value.Content) && err == nil; j += 2 {
				err = checkAmount(value.Content[j].Value, value.Content[j+1], moneyDigits)
			}
		default:
			err = checkAmounts(value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moneyDigits is how many digits of a dollar count.
const moneyDigits = 9

func checkAmount(member string, value *yaml.Node, digits int) error {
	if value.Kind != yaml.ScalarNode {
		return nil // the strict decoder has its say, or an anchor was checked where it stands
	}
	if _, err := money.ParseScaled(value.Value, digits); err != nil {
		form := "a plain decimal such as 12.5"
		if digits == 0 {
			form = "a whole number such as 600"
		}
		return fmt.Errorf("line %d: %s: %q is not %s", value.Line, member, value.Value, form)
	}
	return nil
}

// plainYAMLError takes the names of Go types out of a message.
func plainYAMLError(err error) error {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	message = strings.TrimPrefix(message, "unmarshal errors:\n  ")
	message = regexp.MustCompile(` in type cli\.\w+`).ReplaceAllString(message, " here")
	message = regexp.MustCompile(`field (\S+) not found here`).ReplaceAllString(message, "unknown member $1")
	message = regexp.MustCompile(` into (cli\.\w+|\[\]cli\.\w+)`).ReplaceAllString(message, ", which does not fit here")
	return errors.New(message)
}

// substitute puts the values of environment variables and files in the place of ${NAME} and file:PATH.
func substitute(n *yaml.Node, dir string) error {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			value := n.Content[i+1]
			if name := n.Content[i].Value; (name == "credential" || name == "secret") && value.Kind == yaml.ScalarNode {
				if path, ok := strings.CutPrefix(value.Value, "file:"); ok {
					if !filepath.IsAbs(path) {
						path = filepath.Join(dir, path)
					}
					content, err := readSecret(path)
					if err != nil {
						return fmt.Errorf("line %d: %w", value.Line, err)
					}
					value.Value, value.Tag = content, "!!str"
				}
			}
		}
	}
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "${") {
		var missing string
		replaced := regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`).ReplaceAllStringFunc(n.Value, func(ref string) string {
			name := ref[2 : len(ref)-1]
			value, ok := os.LookupEnv(name)
			if !ok {
				missing = name
			}
			return value
		})
		if missing != "" {
			return fmt.Errorf("line %d: the environment variable %s is not set", n.Line, missing)
		}
		n.Value = replaced
	}
	for _, c := range n.Content {
		if err := substitute(c, dir); err != nil {
			return err
		}
	}
	return nil
}

// credentialOf reads env:NAME or file:PATH, which a flag was given.
func credentialOf(flag, reference string) (string, error) {
	if name, ok := strings.CutPrefix(reference, "env:"); ok {
		value := os.Getenv(name)
		if value == "" {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, nil
	}
	if path, ok := strings.CutPrefix(reference, "file:"); ok {
		return readSecret(path)
	}
	return "", errors.New(flag + " takes env:NAME or file:PATH, so that the secret itself stays out of the shell's history")
}

func readSecret(path string) (string, error) {
	content, err := os.ReadFile(path) //nolint:gosec // whoever runs the command names the file
	if err != nil {
		return "", fmt.Errorf("read credential: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}
