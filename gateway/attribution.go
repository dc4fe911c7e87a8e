package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/providers"
)

// The headers by which a client says what a call is for. They are stripped before the provider.
const (
	headerPrefix      = "X-Tollgate-"
	headerEndUser     = headerPrefix + "End-User"
	headerTags        = headerPrefix + "Tags"
	headerMetadata    = headerPrefix + "Metadata"
	headerMaxCost     = headerPrefix + "Max-Cost"
	headerDryRun      = headerPrefix + "Dry-Run"
	headerIdempotency = "Idempotency-Key"
	headerRequestID   = "X-Request-Id"
)

// Bounds of ruling 14, in bytes and in number.
const (
	maxEndUser     = 256
	maxTags        = 20
	maxTag         = 64 // a tag's name, and its value
	maxMetadata    = 4 << 10
	maxIdempotency = 255
	maxLabel       = 128 // the client's own request id, which is only a label in the log
)

// ownTag begins the names of tags that the gateway gives rows by itself.
const ownTag = "tollgate."

// wishes is what the headers of a request say beside its body.
type wishes struct {
	endUser     string
	tags        map[string]string
	metadata    []byte // a JSON object
	maxCost     *money.Nano
	dryRun      bool
	idempotency string
	label       string
}

// readWishes reads and bounds the attribution headers. A misspelt one is refused, since a limit that a client believes to
// have set must not be dropped (F065).
func readWishes(h http.Header) (wishes, error) {
	var w wishes
	for name, values := range h {
		if !strings.HasPrefix(name, headerPrefix) && name != headerIdempotency {
			continue
		}
		if len(values) != 1 {
			return wishes{}, invalid(name, "The header "+name+" is given more than once.")
		}
		if err := w.read(name, values[0]); err != nil {
			return wishes{}, err
		}
	}
	if label := h.Get(headerRequestID); len(label) <= maxLabel && clean(label) == nil {
		w.label = label
	}
	return w, nil
}

func (w *wishes) read(name, value string) error {
	if err := clean(value); err != nil {
		return invalid(name, "The header "+name+" "+err.Error()+".")
	}
	switch name {
	case headerEndUser:
		if value == "" || len(value) > maxEndUser {
			return invalid(name, "The end user must have 1 to 256 bytes.")
		}
		w.endUser = value
	case headerTags:
		tags, err := readTags(value)
		if err != nil {
			return err
		}
		w.tags = tags
	case headerMetadata:
		if len(value) > maxMetadata || !isObject([]byte(value)) {
			return invalid(name, "The metadata must be a JSON object of at most 4 KiB.")
		}
		if hasNUL([]byte(value)) {
			return invalid(name, "The metadata contains a NUL.")
		}
		w.metadata = []byte(value)
	case headerMaxCost:
		cost, err := money.Parse(value)
		if err != nil {
			return invalid(name, "The maximum cost must be a plain decimal of US dollars, such as 0.25.")
		}
		w.maxCost = &cost
	case headerDryRun:
		if value != "true" && value != "false" {
			return invalid(name, "The header "+name+" must be true or false.")
		}
		w.dryRun = value == "true"
	case headerIdempotency:
		if value == "" || len(value) > maxIdempotency {
			return invalid(name, "The idempotency key must have 1 to 255 bytes.")
		}
		w.idempotency = value
	default:
		return invalid(name, "The header "+name+" is unknown.")
	}
	return nil
}

// readTags reads "name=value, name=value".
func readTags(value string) (map[string]string, error) {
	tags := make(map[string]string)
	for pair := range strings.SplitSeq(value, ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		name, text, ok := strings.Cut(pair, "=")
		name, text = strings.TrimSpace(name), strings.TrimSpace(text)
		if _, twice := tags[name]; !ok || twice || name == "" || len(name) > maxTag || len(text) > maxTag {
			return nil, invalid(headerTags, "Tags are written name=value, each name once, names and values of at most 64 bytes.")
		}
		if strings.HasPrefix(name, ownTag) {
			return nil, invalid(headerTags, "Tags that begin with "+ownTag+" are the gateway's own.")
		}
		tags[name] = text
	}
	if len(tags) > maxTags {
		return nil, invalid(headerTags, "At most 20 tags are allowed.")
	}
	return tags, nil
}

var (
	errNUL  = errors.New("contains a NUL")
	errUTF8 = errors.New("is not valid UTF-8")
)

func clean(s string) error {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return errNUL
	case !utf8.ValidString(s):
		return errUTF8
	}
	return nil
}

func isObject(b []byte) bool {
	b = []byte(strings.TrimSpace(string(b)))
	return len(b) > 0 && b[0] == '{' && json.Valid(b)
}

// hasNUL reports whether JSON text has a NUL in a string, which the database's JSON cannot hold.
func hasNUL(b []byte) bool {
	for i := 0; i+6 <= len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if string(b[i:i+6]) == `\u0000` {
			return true
		}
		i++ // an escaped backslash does not begin another escape
	}
	return false
}

// attribute completes what the headers said by what the body says (ruling 27), and checks what the organization requires.
// Body members are read only; they go on to the provider as they are. dropped names what was too large to be kept.
func (w *wishes) attribute(body *jsonedit.Document, d providers.Dialect, require []string) (dropped []string, err error) {
	if body != nil {
		if err := w.namedBy(body, "user"); err != nil {
			return nil, err
		}
		if isAnthropic(d) {
			if err := w.namedBy(body, "metadata", "user_id"); err != nil {
				return nil, err
			}
		}
		if raw, ok := body.Get("metadata"); ok && w.metadata == nil && raw[0] == '{' {
			switch {
			case hasNUL(raw):
				return nil, invalid("metadata", "metadata contains a NUL.")
			case len(raw) > maxMetadata:
				dropped = append(dropped, "metadata_not_recorded")
			default:
				w.metadata = slices.Clone(raw)
			}
		}
	}
	for _, name := range require {
		if tag, ok := strings.CutPrefix(name, "tags."); ok {
			if w.tags[tag] == "" {
				return nil, invalid(headerTags, "Your organization requires the tag "+tag+", in the header "+headerTags+".")
			}
		} else if name == "end_user" && w.endUser == "" {
			return nil, invalid(headerEndUser, "Your organization requires the end user, in the header "+headerEndUser+" or the member user.")
		}
	}
	return dropped, nil
}

// namedBy takes the end user from a member of the body, which must not contradict what was said before.
func (w *wishes) namedBy(body governance.Members, path ...string) error {
	name := strings.Join(path, ".")
	user, ok, err := body.String(path...)
	switch {
	case err != nil:
		return invalid(name, name+" must be a string.")
	case !ok || user == "":
	case len(user) > maxEndUser:
		return invalid(name, name+" must have at most 256 bytes.")
	case clean(user) != nil:
		return invalid(name, name+" "+clean(user).Error()+".")
	case w.endUser != "" && w.endUser != user:
		return invalid(name, "The member "+name+" names another end user than the header "+headerEndUser+" or the member user.")
	default:
		w.endUser = user
	}
	return nil
}

// orUnavailable answers for a store that could not be read; a governance.Error speaks for itself.
func orUnavailable(err error) error {
	if _, ok := errors.AsType[*governance.Error](err); ok {
		return err
	}
	return &governance.Error{
		Code: governance.CodeDataStoreUnavailable, Public: "The gateway cannot read its data at the moment.", Err: err,
	}
}
