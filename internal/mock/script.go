package mock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Script is the parsed behaviour of one answer. Its zero value is the answer without faults.
type Script struct {
	text string

	// What is said.
	content         []string // nil: the default words
	usage           *usage   // nil: counted
	usageMode       usageMode
	seconds         int // of audio that a transcription reports instead of tokens; 0: tokens
	status          int // 0: as the route says
	shape           string
	headers         [][2]string
	contentType     string
	encoding        string
	redirect        string
	echo            bool
	errorBody       bool
	firstEventError bool
	midStreamError  string
	midStreamAfter  int
	choices         string
	dataNull        bool
	roleOnly        bool
	refusal         bool
	annotations     bool
	parallelTools   bool
	tool            *toolUse // nil: none
	thinking        bool
	cacheWrites     [2]int // tokens written for 5 minutes and for an hour
	interleaved     bool
	logprobs        bool
	twoTerminals    bool
	combined        bool
	blankLines      int
	comments        int
	giantLine       int
	endlessLine     bool

	// How it is sent.
	hold           bool
	confirm        bool
	firstByteDelay time.Duration
	frameGap       time.Duration
	pingGap        time.Duration
	dribble        int
	acceptDelay    time.Duration

	// Where it breaks.
	fault            fault
	faultAfter       int
	resetBeforeBytes bool
	idleSocketClose  bool
}

// toolUse is a tool that an answer uses, with its input as JSON.
type toolUse struct{ name, input string }

type usageMode int

const (
	usageIfAsked usageMode = iota
	usageNever
	usageAlways
	usageCumulative
)

type fault int

const (
	noFault fault = iota
	faultFreeze
	faultPings
	faultReset
	faultCleanClose
)

// String returns the script as it was given.
func (s *Script) String() string { return s.text }

// plain reports whether the answer is the one without a script, which has a fast path.
func (s *Script) plain() bool { return s.text == "" }

// directive is one word of the language.
type directive struct {
	name, args, does string
	apply            func(*Script, *arguments)
}

var errorShapes = []string{
	"object", "string", "array", "text", "html", "numeric_code", "nested", "detail", "empty", "quota", "context_length", "echo_key",
}

// directives is the language, in the order of its help.
var directives = []directive{
	{"ok", "", "the answer without a fault", func(*Script, *arguments) {}},
	{"text", "(text)", "answers with this text", func(s *Script, a *arguments) { s.content = split(a.text()) }},
	{"pieces", "(text,n)", "answers with this text, n characters to a frame", func(s *Script, a *arguments) {
		text := []rune(a.text())
		if n := a.number(1); a.err == nil {
			s.content = nil
			for piece := range slices.Chunk(text, n) {
				s.content = append(s.content, string(piece))
			}
		}
	}},
	{"words", "(n)", "answers with n words, so n output tokens", func(s *Script, a *arguments) {
		n := a.number(1)
		if n > maxWords {
			a.fail("%d words are above %d", n, maxWords)
			return
		}
		s.content = words(n)
	}},
	{"echo_body_sha256", "", "answers with the SHA-256 of the request's body as its text", func(s *Script, _ *arguments) { s.echo = true }},

	{"usage", "(in,out[,cached[,reasoning]])", "reports these tokens; negative ones too; in includes cached, out includes reasoning", func(s *Script, a *arguments) {
		s.usage = &usage{in: a.integer(), out: a.integer(), cached: a.optionalInteger(), reasoning: a.optionalInteger()}
	}},
	{"ok_usage_only_if_asked", "", "usage in a stream only if stream_options asks (as without a script)", func(s *Script, _ *arguments) { s.usageMode = usageIfAsked }},
	{"ok_no_usage", "", "never any usage, asked or not", func(s *Script, _ *arguments) { s.usageMode = usageNever }},
	{"ok_usage_always", "", "usage in a last frame though nobody asked", func(s *Script, _ *arguments) { s.usageMode = usageAlways }},
	{"seconds", "(n)", "transcriptions: reports n seconds of audio instead of tokens", func(s *Script, a *arguments) { s.seconds = a.number(1) }},
	{"usage_each_frame_cumulative", "", "usage in each frame of a chat stream: 1, 2, 3 …", func(s *Script, _ *arguments) { s.usageMode = usageCumulative }},

	{"status", "(code[,shape])", "refuses; shape: " + strings.Join(errorShapes, ", "), func(s *Script, a *arguments) {
		s.status, s.shape = a.number(200), a.optionalChoice(errorShapes...)
		if s.status > 599 {
			a.fail("status %d is above 599", s.status)
		}
	}},
	{"retry_after", "(text)", "adds Retry-After", func(s *Script, a *arguments) { s.headers = append(s.headers, [2]string{"Retry-After", a.text()}) }},
	{"header", "(name,value)", "adds a header to the answer", func(s *Script, a *arguments) { s.headers = append(s.headers, [2]string{a.text(), a.text()}) }},
	{"200_with_error_body", "", "an error object under status 200", func(s *Script, _ *arguments) { s.errorBody = true }},
	{"200_first_event_error", "", "a stream whose only event is an error", func(s *Script, _ *arguments) { s.firstEventError = true }},
	{"mid_stream_error", "(shape[,n])", "an error after n frames (2), then the end; shape as of status, or event (with event: error)", func(s *Script, a *arguments) {
		s.midStreamError, s.midStreamAfter = a.choice(append(slices.Clone(errorShapes), "event")...), a.optionalNumber(0, 2)
	}},
	{"redirect", "[(url)]", "307 to url", func(s *Script, a *arguments) { s.redirect = a.optionalText("/v1/redirected") }},
	{"wrong_content_type", "[(type)]", "text/plain, or type", func(s *Script, a *arguments) { s.contentType = a.optionalText("text/plain; charset=utf-8") }},
	{"gzip", "", "compresses whatever is answered, errors and streams too", func(s *Script, _ *arguments) { s.encoding = "gzip" }},
	{"deflate", "", "the same as zlib", func(s *Script, _ *arguments) { s.encoding = "deflate" }},
	{"br", "", "the same as Brotli", func(s *Script, _ *arguments) { s.encoding = "br" }},

	{"choices_shape", "(empty|null|object|absent)", "chat: such choices in a frame ahead of the others, or in the answer", func(s *Script, a *arguments) {
		s.choices = a.choice("empty", "null", "object", "absent")
	}},
	{"data_null", "", "a frame `data: null` ahead of the others", func(s *Script, _ *arguments) { s.dataNull = true }},
	{"role_only", "", "chat: a second frame with only a role", func(s *Script, _ *arguments) { s.roleOnly = true }},
	{"refusal", "", "chat, messages: a refusal instead of content", func(s *Script, _ *arguments) { s.refusal = true }},
	{"annotations", "", "chat: a frame with annotations", func(s *Script, _ *arguments) { s.annotations = true }},
	{"thinking", "", "messages: a block of thinking with its signature first", func(s *Script, _ *arguments) { s.thinking = true }},
	{"cache_writes", "(5m[,1h])", "messages: reports tokens written to the cache, beside those of usage", func(s *Script, a *arguments) {
		s.cacheWrites = [2]int{a.number(0), a.optionalNumber(0, 0)}
	}},
	{"parallel_tools_in_one_frame", "", "two tool calls instead of content, of chat in one frame", func(s *Script, _ *arguments) { s.parallelTools = true }},
	{"tool", "(name,input)", "uses this tool with this JSON instead of content", func(s *Script, a *arguments) {
		s.tool = &toolUse{name: a.text(), input: a.text()}
		if !jsontext.Value(s.tool.input).IsValid() {
			a.fail("%q is no JSON", s.tool.input)
		}
	}},
	{"n2_interleaved", "", "chat: two choices whose frames alternate", func(s *Script, _ *arguments) { s.interleaved = true }},
	{"logprobs", "", "chat: logprobs with each word", func(s *Script, _ *arguments) { s.logprobs = true }},
	{"two_terminal_events", "", "the terminal event twice", func(s *Script, _ *arguments) { s.twoTerminals = true }},
	{"combined_terminal_frame", "", "chat: last word, finish_reason and usage in one frame", func(s *Script, _ *arguments) { s.combined = true }},
	{"giant_line", "(size)", "a frame of at least size bytes in one line", func(s *Script, a *arguments) { s.giantLine = a.size() }},
	{"endless_line", "", "a line that does not end until the client leaves", func(s *Script, _ *arguments) { s.endlessLine = true }},
	{"blank_lines", "(n)", "n blank lines ahead of the frames", func(s *Script, a *arguments) { s.blankLines = a.number(1) }},
	{"comments", "(n)", "n comment lines ahead of the frames", func(s *Script, a *arguments) { s.comments = a.number(1) }},

	{"hold", "", "waits for POST /_release before the first byte", func(s *Script, _ *arguments) { s.hold = true }},
	{"confirm", "", "sends frame k + 1 when POST /_release has confirmed frame k", func(s *Script, _ *arguments) { s.confirm = true }},
	{"first_byte_delay", "(t)", "waits before the first byte", func(s *Script, a *arguments) { s.firstByteDelay = a.duration() }},
	{"frame_gap", "(t)", "waits between frames", func(s *Script, a *arguments) { s.frameGap = a.duration() }},
	{"byte_dribble", "(n)", "n bytes a write; the text has characters of several bytes", func(s *Script, a *arguments) {
		s.dribble = a.number(1)
		if s.content == nil {
			s.content = split("Grüße aus 漢字 🙂 dazu.")
		}
	}},
	{"slow_accept", "(t)", "by POST /_script only: new connections wait", func(s *Script, a *arguments) { s.acceptDelay = a.duration() }},

	{"pings_only_after", "(n[,t])", "n frames, then only a comment each t (1s)", func(s *Script, a *arguments) {
		s.breakAfter(a, faultPings)
		s.pingGap = a.optionalDuration(time.Second)
	}},
	{"freeze_after", "(n)", "n frames, then silence", func(s *Script, a *arguments) { s.breakAfter(a, faultFreeze) }},
	{"reset_before_bytes", "", "resets the connection instead of answering", func(s *Script, _ *arguments) { s.resetBeforeBytes = true }},
	{"reset_after", "(n)", "n frames, then a reset", func(s *Script, a *arguments) { s.breakAfter(a, faultReset) }},
	{"clean_close_without_done", "[(n)]", "n frames (all but the terminal one), then a clean end", func(s *Script, a *arguments) {
		s.fault, s.faultAfter = faultCleanClose, a.optionalNumber(0, -1)
	}},
	{"idle_socket_close", "", "closes the connection after the answer without having said so", func(s *Script, _ *arguments) { s.idleSocketClose = true }},
}

func (s *Script) breakAfter(a *arguments, f fault) { s.fault, s.faultAfter = f, a.number(0) }

// Help describes the language, one directive a line.
func Help() string {
	var b strings.Builder
	for _, d := range directives {
		fmt.Fprintf(&b, "  %-38s %s\n", d.name+d.args, d.does)
	}
	return b.String()
}

// errUnknownDirective tells a model's name that is only a name from a script with a fault.
var errUnknownDirective = errors.New("unknown directive")

// Parse reads a script. The empty one is the answer without faults.
func Parse(text string) (*Script, error) {
	s := &Script{text: strings.TrimSpace(text)}
	if s.text == "" {
		return s, nil
	}
	for rest := s.text; ; {
		name, args, after, err := next(rest)
		if err != nil {
			return nil, fmt.Errorf("read script %q: %w", text, err)
		}
		at := slices.IndexFunc(directives, func(d directive) bool { return d.name == name })
		if at < 0 {
			return nil, fmt.Errorf("read script %q: %w %q", text, errUnknownDirective, name)
		}
		a := arguments{left: args}
		directives[at].apply(s, &a)
		if len(a.left) > 0 {
			a.fail("%d arguments too many", len(a.left))
		}
		if a.err != nil {
			return nil, fmt.Errorf("read script %q: %s%s: %w", text, name, directives[at].args, a.err)
		}
		if after == "" {
			return s, nil
		}
		rest = after[1:]
	}
}

// next takes one directive off text; after is empty or begins with the comma.
func next(text string) (name string, args []string, after string, err error) {
	end := strings.IndexAny(text, "(),\"")
	if end < 0 {
		return strings.TrimSpace(text), nil, "", nil
	}
	name = strings.TrimSpace(text[:end])
	switch text[end] {
	case ',':
		return name, nil, text[end:], nil
	case '(':
	default:
		return "", nil, "", fmt.Errorf("unexpected %q at byte %d", text[end], end)
	}
	rest := text[end+1:]
	for {
		var arg string
		rest = strings.TrimLeft(rest, " ")
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return "", nil, "", fmt.Errorf("text without its closing quote: %w", err)
			}
			if arg, err = strconv.Unquote(quoted); err != nil {
				return "", nil, "", fmt.Errorf("unquote text: %w", err)
			}
			rest = strings.TrimLeft(rest[len(quoted):], " ")
		} else {
			stop := strings.IndexAny(rest, ",)(\"")
			if stop < 0 {
				return "", nil, "", errors.New("closing bracket is missing")
			}
			arg, rest = strings.TrimSpace(rest[:stop]), rest[stop:]
		}
		args = append(args, arg)
		switch {
		case strings.HasPrefix(rest, ","):
			rest = rest[1:]
		case strings.HasPrefix(rest, ")"):
			rest = strings.TrimLeft(rest[1:], " ")
			if rest != "" && rest[0] != ',' {
				return "", nil, "", fmt.Errorf("comma expected before %q", rest)
			}
			return name, args, rest, nil
		default:
			return "", nil, "", fmt.Errorf("comma or closing bracket expected before %q", rest)
		}
	}
}

// arguments hands out what stands in a directive's brackets and keeps the first fault.
type arguments struct {
	left []string
	err  error
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

func (a *arguments) text() string {
	if len(a.left) == 0 {
		a.fail("an argument is missing")
		return ""
	}
	arg := a.left[0]
	a.left = a.left[1:]
	return arg
}

func (a *arguments) optionalText(otherwise string) string {
	if len(a.left) == 0 {
		return otherwise
	}
	return a.text()
}

func (a *arguments) choice(of ...string) string {
	arg := a.text()
	if !slices.Contains(of, arg) {
		a.fail("%q is none of %s", arg, strings.Join(of, ", "))
	}
	return arg
}

func (a *arguments) optionalChoice(of ...string) string {
	if len(a.left) == 0 {
		return of[0]
	}
	return a.choice(of...)
}

func (a *arguments) integer() int {
	arg := a.text()
	n, err := strconv.Atoi(arg)
	if err != nil {
		a.fail("%q is no number", arg)
	}
	return n
}

func (a *arguments) optionalInteger() int {
	if len(a.left) == 0 {
		return 0
	}
	return a.integer()
}

// These keep a mistyped script from eating the memory of the machine.
const (
	maxNumber = 256 << 20
	maxWords  = 1 << 20
)

func (a *arguments) number(least int) int {
	n := a.integer()
	if n < least || n > maxNumber {
		a.fail("%d is not within %d … %d", n, least, maxNumber)
		return least
	}
	return n
}

func (a *arguments) optionalNumber(least, otherwise int) int {
	if len(a.left) == 0 {
		return otherwise
	}
	return a.number(least)
}

// size reads bytes, with k or m for 2^10 or 2^20 of them.
func (a *arguments) size() int {
	if len(a.left) == 0 {
		return a.number(1)
	}
	factor := 1
	switch arg := strings.ToLower(a.left[0]); {
	case strings.HasSuffix(arg, "k"):
		factor, a.left[0] = 1<<10, arg[:len(arg)-1]
	case strings.HasSuffix(arg, "m"):
		factor, a.left[0] = 1<<20, arg[:len(arg)-1]
	}
	n := a.number(1)
	if n > maxNumber/factor {
		a.fail("size is above %d bytes", maxNumber)
		return 0
	}
	return n * factor
}

func (a *arguments) duration() time.Duration {
	arg := a.text()
	d, err := time.ParseDuration(arg)
	if err != nil || d < 0 {
		a.fail("%q is no duration such as 50ms", arg)
	}
	return d
}

func (a *arguments) optionalDuration(otherwise time.Duration) time.Duration {
	if len(a.left) == 0 {
		return otherwise
	}
	return a.duration()
}

// DefaultText is the answer without a script: nine words.
const DefaultText = "The quick brown fox jumps over the lazy dog."

// split cuts text into words that give the text when joined.
func split(text string) []string {
	var parts []string
	for word := range strings.SplitAfterSeq(text, " ") {
		if word != "" {
			parts = append(parts, word)
		}
	}
	return parts
}

// words repeats the words of the default text up to n.
func words(n int) []string {
	base := split(DefaultText + " ")
	parts := make([]string, n)
	for i := range parts {
		parts[i] = base[i%len(base)]
	}
	parts[n-1] = strings.TrimSpace(parts[n-1])
	return parts
}
