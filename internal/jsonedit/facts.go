package jsonedit

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// EstimatorVersion names the rules of Facts.PromptTokens. It goes up with each change of them, and stands on every row
// of spend, so that an estimate can be computed again.
const EstimatorVersion = 1

// Facts are what can be said of a prompt from its bytes alone.
type Facts struct {
	TextBytes    int64 // UTF-8 bytes of all strings that the model reads, unescaped
	TokenIDs     int64 // tokens that were sent as numbers
	Messages     int   // messages, or items of a conversation
	Prompts      int   // prompts of an array "prompt" or "input"; at least 1
	Images       int
	Audios       int
	AudioSeconds int64 // estimated from their bytes
	Files        int
	FileBytes    int64 // of the files that were sent along
	CacheWrite   bool  // cache_control is present: input may be priced as a cache write
	CacheHour    bool  // with a time to live of one hour
}

// Tokens by rule. Providers differ by model; these are high for the common ones without being absurd for any.
const (
	bytesPerToken       = 3 // English has 5 bytes a token, Chinese 3.8, code 3.3
	tokensPerMessage    = 4
	tokensPerImage      = 1_600
	tokensPerAudioSec   = 32
	tokensPerFile       = 4_000
	fileBytesPerToken   = 16
	waveBytesPerSecond  = 32_000
	audioBytesPerSecond = 8_000
)

// PromptTokens estimates the prompt: the bytes of its text ÷ 3, rounded up, 4 for each message, and media by their rules.
func (f Facts) PromptTokens() int64 {
	return (f.TextBytes+bytesPerToken-1)/bytesPerToken + f.TokenIDs +
		int64(f.Messages)*tokensPerMessage +
		int64(f.Images)*tokensPerImage +
		f.AudioSeconds*tokensPerAudioSec +
		int64(f.Files)*tokensPerFile + f.FileBytes/fileBytesPerToken
}

// zone says how the strings of a value are read.
type zone uint8

const (
	unread    zone = iota // the model does not see them
	text                  // the model reads the values
	verbatim              // tool inputs and JSON schemas: the model reads names and values, names may be given twice
	kindOf                // value of "type", which says what the surrounding part is
	image                 // an image, its URL or its data
	audio                 // audio
	file                  // a file, of which the model reads an unknown part
	source                // the source of an Anthropic image or document
	result                // text, or an image if the part is an image_generation_call
	cacheMark             // cache_control
)

// part is what becomes known of a part of a message member by member, in any order; close draws the sum.
type part struct {
	kind   partKind
	result span // its result
	source sourceFacts
}

// sourceFacts is what the source of an Anthropic image or document says of itself.
type sourceFacts struct {
	present bool
	kind    partKind // of the source
	isImage bool     // by its media type
	data    span
}

// span locates a string literal in the body; the zero value is none.
type span struct{ from, to int }

// partKind is what a "type" says, as far as it matters.
type partKind uint8

const (
	otherKind partKind = iota
	textKind
	contentKind
	imageKind
	imageCallKind
)

func partKindOf(literal []byte) partKind {
	switch string(literal) {
	case `"text"`:
		return textKind
	case `"content"`:
		return contentKind
	case `"image"`:
		return imageKind
	case `"image_generation_call"`:
		return imageCallKind
	}
	return otherKind
}

// promptCount counts the prompts of one top-level member.
type promptCount struct {
	whole int  // strings and arrays
	rest  bool // numbers or objects, which make one prompt together
}

func (p promptCount) total() int {
	if p.rest {
		return p.whole + 1
	}
	return p.whole
}

// topZone returns how a top-level member is read.
func topZone(name string) zone {
	switch name {
	case "messages", "input", "prompt", "suffix", "system", "instructions", "query", "documents", "prediction",
		"tools", "functions", "response_format", "text", "output_format", "output_config":
		return text
	case "cache_control":
		return cacheMark
	}
	return unread
}

// enter decides how the value behind a name is read.
func (w *walker) enter(f *frame, name, literal []byte) {
	switch {
	case len(w.frames) == 1:
		f.next = topZone(string(name))
	case f.zone == verbatim:
		w.facts.TextBytes += textLen(literal)
		f.next = verbatim
	case f.zone == text:
		f.next = w.memberZone(name)
	case f.zone == source && string(name) == "content":
		f.next = text
	default:
		f.next = f.zone
	}
}

// memberZone returns how a member inside a text is read.
func (w *walker) memberZone(name []byte) zone {
	switch string(name) {
	case "type":
		return kindOf
	case "role", "signature":
		return unread
	case "cache_control":
		return cacheMark
	case "image_url":
		return image
	case "input_audio":
		return audio
	case "file", "file_data", "file_id", "file_url", "video_url":
		return file
	case "source":
		return source
	case "result":
		return result
	}
	if w.isVerbatim(name) {
		return verbatim
	}
	return text
}

// isVerbatim reports whether a member inside a text is a tool input or a JSON schema: it is by where the dialects have
// them, so that a member of the same name elsewhere is held to one value.
func (w *walker) isVerbatim(name []byte) bool {
	switch string(w.top()) {
	case "messages", "input":
		return string(name) == "arguments" || string(name) == "input"
	case "tools", "functions":
		return string(name) == "parameters" || string(name) == "input_schema" || string(name) == "input_examples"
	case "response_format", "text", "output_format", "output_config":
		return string(name) == "schema"
	}
	return false
}

// zoneOf returns how the next value in f is read.
func zoneOf(f *frame) zone {
	if f.object {
		return f.next
	}
	return f.zone
}

// open takes note of an object or array that begins in f and returns how its values are read.
func (w *walker) open(f *frame, isObject bool) zone {
	if isObject {
		w.countValue(f, '{')
	} else {
		w.countValue(f, '[')
	}
	z := zoneOf(f)
	switch z {
	case kindOf, result:
		return text
	case source:
		if f.zone == source || !isObject {
			return text
		}
	case image, audio, file, cacheMark:
		if f.zone != z {
			w.countMark(z)
		}
	}
	return z
}

// close takes note of the end of f, which is inside parent.
func (w *walker) close(f, parent *frame) {
	switch f.zone {
	case source:
		parent.part.source = f.part.source
		parent.part.source.present = true
		parent.part.source.kind = f.part.kind
	case text:
		w.closePart(f.part)
	}
}

func (w *walker) closePart(p part) {
	switch {
	case p.result == span{}:
	case p.kind == imageCallKind:
		w.facts.Images++
	default:
		w.read(p.result)
	}
	switch s := p.source; {
	case !s.present, s.kind == contentKind:
	case s.kind == textKind:
		if s.data != (span{}) {
			w.read(s.data)
		}
	case s.isImage || p.kind == imageKind:
		w.facts.Images++
	default:
		w.facts.Files++
		w.facts.FileBytes += decodedLen(int64(max(s.data.to-s.data.from-len(`""`), 0)))
	}
}

// read counts a string that the model reads.
func (w *walker) read(at span) {
	w.facts.TextBytes += textLen(w.doc.body[at.from:at.to])
	if w.onText != nil {
		w.onText(at)
	}
}

// last locates the literal that the decoder has just read.
func (w *walker) last(literal []byte) span {
	end := int(w.dec.InputOffset())
	return span{end - len(literal), end}
}

// scalar takes a string, number, boolean or null in f.
func (w *walker) scalar(f *frame, literal []byte) {
	w.countValue(f, literal[0])
	z := zoneOf(f)
	if literal[0] != '"' {
		if z == text && !f.object && isNumber(literal[0]) && len(w.frames) <= 3 && w.inPrompt() {
			w.facts.TokenIDs++
		}
		return
	}
	switch z {
	case unread:
	case text, verbatim:
		w.read(w.last(literal))
	case kindOf:
		f.part.kind = partKindOf(literal)
	case result:
		f.part.result = w.last(literal)
	case source:
		if f.zone == source {
			w.sourceMember(f, literal)
		} else {
			w.read(w.last(literal))
		}
	case image, audio, file, cacheMark:
		if f.zone != z {
			w.countMark(z)
		}
		w.countPayload(z, literal)
	}
}

// countValue counts messages and prompts: f is the body, or an array that is a top-level member; first is the first byte
// of the value.
func (w *walker) countValue(f *frame, first byte) {
	element := len(w.frames) == 2 && !f.object
	switch {
	case len(w.frames) == 1:
		if first == '"' && w.inPrompt() {
			w.prompt.whole++
		}
	case element && w.inPrompt():
		if first == '"' || first == '[' {
			w.prompt.whole++
		} else {
			w.prompt.rest = true
		}
		if first == '{' {
			w.facts.Messages++
		}
	case element && first == '{' && string(w.top()) == "messages":
		w.facts.Messages++
	}
}

func isNumber(first byte) bool { return first == '-' || first >= '0' && first <= '9' }

// countMark counts a medium, or notes a cache mark.
func (w *walker) countMark(z zone) {
	switch z {
	case image:
		w.facts.Images++
	case audio:
		w.facts.Audios++
	case file:
		w.facts.Files++
	case cacheMark:
		w.facts.CacheWrite = true
	}
}

// countPayload takes a string of a medium or a cache mark.
func (w *walker) countPayload(z zone, literal []byte) {
	name := w.names[len(w.names)-1]
	if z == cacheMark {
		if string(name) == "ttl" && string(literal) == `"1h"` {
			w.facts.CacheHour = true
		}
		return
	}
	data := literal[1 : len(literal)-1]
	if bytes.HasPrefix(data, []byte("data:")) {
		data = data[bytes.IndexByte(data, ',')+1:]
	} else if string(name) != "data" && string(name) != "file_data" {
		return
	}
	size := decodedLen(int64(len(data)))
	switch {
	case z == file:
		w.facts.FileBytes += size
	case z == audio && bytes.HasPrefix(data, []byte(waveMagic)):
		w.facts.AudioSeconds += size/waveBytesPerSecond + 1
	case z == audio:
		w.facts.AudioSeconds += size/audioBytesPerSecond + 1
	}
}

// waveMagic is "RIFF" in base64.
const waveMagic = "UklGR"

// sourceMember takes a string of a source.
func (w *walker) sourceMember(f *frame, literal []byte) {
	switch string(w.names[len(w.names)-1]) {
	case "type":
		f.part.kind = partKindOf(literal)
	case "media_type":
		f.part.source.isImage = bytes.HasPrefix(literal, []byte(`"image/`))
	case "data":
		f.part.source.data = w.last(literal)
	}
}

// top returns the name of the top-level member that is being read.
func (w *walker) top() []byte {
	members := w.doc.root.members
	return members[len(members)-1].name
}

// inPrompt reports whether the top-level member that is being read holds prompts.
func (w *walker) inPrompt() bool {
	top := w.top()
	return string(top) == "input" || string(top) == "prompt"
}

// decodedLen returns how many bytes n characters of base64 hold at most.
func decodedLen(n int64) int64 { return n * 3 / 4 }

// textLen returns how many bytes of UTF-8 a valid JSON string literal stands for. A lone surrogate counts as U+FFFD.
func textLen(literal []byte) int64 {
	rest := literal[1 : len(literal)-1]
	n := len(rest)
	for {
		at := bytes.IndexByte(rest, '\\')
		switch {
		case at < 0:
			return int64(n)
		case rest[at+1] != 'u':
			n--
			rest = rest[at+2:]
			continue
		}
		r := hex4(rest[at+2:])
		rest = rest[at+6:]
		if utf16.IsSurrogate(r) && bytes.HasPrefix(rest, []byte(`\u`)) {
			if pair := utf16.DecodeRune(r, hex4(rest[2:])); pair != utf8.RuneError {
				n -= 2*6 - utf8.RuneLen(pair)
				rest = rest[6:]
				continue
			}
		}
		if utf16.IsSurrogate(r) {
			r = utf8.RuneError
		}
		n -= 6 - utf8.RuneLen(r)
	}
}

// hex4 returns the code unit that begins b in four hexadecimal digits.
func hex4(b []byte) rune {
	u, _ := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(u)
}
