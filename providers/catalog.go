package providers

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed catalog.yaml
var builtinCatalog []byte

// Entry is a kind of provider that speaks OpenAI's dialects, as a catalog describes it: all that tells one from another.
type Entry struct {
	// Kind is the name that providers in the store carry. It stays as it is once somebody uses it.
	Kind  string `yaml:"kind"`
	Title string `yaml:"title"`
	// BaseURL is where everybody reaches it; empty where each account or installation has an address of its own.
	BaseURL string `yaml:"base_url"`
	// ExampleURL shows the form of an address where BaseURL is empty.
	ExampleURL string `yaml:"example_url"`
	// Auth is how the upstream learns who asks; empty: AuthBearer.
	Auth Auth `yaml:"auth"`
	// Speaks names the dialects without the prefix that they have in common: chat, responses, …
	Speaks []string `yaml:"speaks"`
	// Batches says that its accounts keep files and run batches as OpenAI's do.
	Batches bool `yaml:"batches"`
	// Prices is its name in the price book; empty: the book has none, and each provider is looked up by its own name.
	Prices string `yaml:"prices"`
	Docs   string `yaml:"docs"`
	// Unversioned says that its paths begin right behind the base URL, which names no version.
	Unversioned bool   `yaml:"unversioned"`
	Quirks      Quirks `yaml:"quirks"`
}

// Auth is how a credential travels: AuthBearer, AuthNone, or the name of the header that holds it and nothing else.
type Auth string

// The ways that are no header's name.
const (
	AuthBearer Auth = "bearer" // Authorization: Bearer …
	// AuthNone is of servers that ask for none. One that is stored all the same goes as a bearer token: it is for the proxy in
	// front of the server.
	AuthNone Auth = "none"
)

// Header returns the header and what stands before the credential in it.
func (a Auth) Header() (name, scheme string) {
	switch a {
	case "", AuthBearer, AuthNone:
		return "Authorization", "Bearer "
	}
	return string(a), ""
}

// Quirks is how an upstream differs from the dialects that it speaks.
type Quirks struct {
	// NoStreamOptions says that it refuses the member stream_options. It is where new targets begin.
	NoStreamOptions bool `yaml:"no_stream_options"`
	// OutputLimit is the one name of max_tokens and max_completion_tokens by which it knows the limit of a chat's output;
	// empty: it knows both.
	OutputLimit string `yaml:"output_limit"`
}

// Quirky is a Provider whose upstream has quirks. Whoever writes its requests minds them.
type Quirky interface{ Quirks() Quirks }

// catalogDialects are the dialects that an entry can name.
func catalogDialects() []Dialect {
	return []Dialect{
		OpenAIChat, OpenAICompletions, OpenAIResponses, OpenAIEmbeddings, OpenAIModerations,
		OpenAIImages, OpenAIImageEdits, OpenAIImageVariations, OpenAISpeech, OpenAITranscriptions, OpenAITranslations, CohereRerank,
	}
}

// catalogName is what an entry calls a dialect: what stands behind the prefix.
func catalogName(d Dialect) string {
	_, name, _ := strings.Cut(string(d), "/")
	return name
}

// Dialects lists what the entry speaks.
func (e *Entry) Dialects() []Dialect {
	all := make([]Dialect, 0, len(e.Speaks))
	for _, d := range catalogDialects() {
		if slices.Contains(e.Speaks, catalogName(d)) {
			all = append(all, d)
		}
	}
	return all
}

// Catalog returns the kinds that ship with Tollgate, in the order of their names.
func Catalog() ([]Entry, error) {
	entries, err := ReadCatalog(builtinCatalog)
	if err != nil {
		return nil, fmt.Errorf("read built-in catalog: %w", err)
	}
	return entries, nil
}

// ReadCatalog reads a list of entries in YAML and checks them. A member that no entry has, a kind that stands twice and
// whatever cannot be used is an error that names the entry; all faults are in one error.
func ReadCatalog(text []byte) ([]Entry, error) {
	var nodes []yaml.Node
	if err := yaml.Unmarshal(text, &nodes); err != nil {
		return nil, fmt.Errorf("want a list of entries: %w", err)
	}
	entries := make([]Entry, 0, len(nodes))
	seen := make(map[string]bool, len(nodes))
	var faults []error
	for i := range nodes {
		e, err := readEntry(&nodes[i])
		if err == nil && seen[e.Kind] {
			err = errors.New("stands twice")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("entry %q at line %d: %w", e.Kind, nodes[i].Line, err))
			continue
		}
		seen[e.Kind] = true
		entries = append(entries, e)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Kind, b.Kind) })
	return entries, nil
}

func readEntry(n *yaml.Node) (Entry, error) {
	var e Entry
	text, err := yaml.Marshal(n)
	if err != nil {
		return e, fmt.Errorf("read: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&e); err != nil && !errors.Is(err, io.EOF) {
		return e, unplaced(err)
	}
	return e, e.validate()
}

// unplaced takes the line numbers from what a decoder says, which are none of the file.
func unplaced(err error) error {
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return err
	}
	texts := make([]string, 0, len(wrong.Errors))
	for _, text := range wrong.Errors {
		if _, what, ok := strings.Cut(text, ": "); ok {
			text = what
		}
		texts = append(texts, text)
	}
	return errors.New(strings.Join(texts, ", "))
}

var (
	kindForm   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	headerForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)
)

const maxKind = 64 // bytes

func (e *Entry) validate() error {
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(kindForm.MatchString(e.Kind) && len(e.Kind) <= maxKind,
		"kind: want lower-case letters, digits and dashes, %d at most", maxKind)
	need(e.Title != "", "title: is missing")
	need(e.BaseURL != "" || e.ExampleURL != "", "base_url: is missing; where each account has its own, example_url shows its form")
	need(e.BaseURL == "" || e.ExampleURL == "", "example_url: is for entries without base_url")
	need(e.BaseURL == "" || isBase(e.BaseURL), "base_url: %q is no https URL without user, query or fragment", e.BaseURL)
	need(e.Docs == "" || isPage(e.Docs), "docs: %q is no https URL", e.Docs)
	need(e.Auth == "" || headerForm.MatchString(string(e.Auth)), "auth: want bearer, none or the name of a header, not %q", e.Auth)
	need(len(e.Speaks) > 0, "speaks: names no dialect")
	for i, name := range e.Speaks {
		need(slices.Contains(strings.Split(dialectNames(), ", "), name), "speaks: %q is none of %s", name, dialectNames())
		need(!slices.Contains(e.Speaks[:i], name), "speaks: %q stands twice", name)
	}
	switch e.Quirks.OutputLimit {
	case "", "max_tokens", "max_completion_tokens":
	default:
		need(false, "quirks: output_limit: want max_tokens or max_completion_tokens, not %q", e.Quirks.OutputLimit)
	}
	return errors.Join(faults...)
}

func dialectNames() string {
	var names []string
	for _, d := range catalogDialects() {
		names = append(names, catalogName(d))
	}
	return strings.Join(names, ", ")
}

// isBase reports whether text is an address that requests and credentials may be sent to.
func isBase(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.RawQuery == "" && !u.ForceQuery &&
		!strings.Contains(text, "#")
}

func isPage(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == "https" && u.Hostname() != ""
}
