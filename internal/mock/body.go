package mock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// body is what the mock reads of a request. Like the providers' own servers it takes the last of two members of one
// name, and compares names exactly.
type body struct {
	Model               string         `json:"model"`
	Stream              bool           `json:"stream"`
	N                   int            `json:"n"`
	StreamOptions       *streamOptions `json:"stream_options"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	MaxOutputTokens     *int           `json:"max_output_tokens"`
	EncodingFormat      string         `json:"encoding_format"`
	Dimensions          int            `json:"dimensions"`
	PreviousResponseID  string         `json:"previous_response_id"`
	InputFileID         string         `json:"input_file_id"`
	Purpose             string         `json:"purpose"`
	ResponseFormat      jsontext.Value `json:"response_format"`
	StreamFormat        string         `json:"stream_format"`
	PartialImages       int            `json:"partial_images"`

	Generation struct {
		MaxOutputTokens *int `json:"maxOutputTokens"`
	} `json:"generationConfig"`

	Inference struct {
		MaxTokens *int `json:"maxTokens"`
	} `json:"inferenceConfig"`

	Contents     jsontext.Value `json:"contents"`
	SystemText   jsontext.Value `json:"systemInstruction"`
	Messages     jsontext.Value `json:"messages"`
	Input        jsontext.Value `json:"input"`
	Prompt       jsontext.Value `json:"prompt"`
	System       jsontext.Value `json:"system"`
	Instructions jsontext.Value `json:"instructions"`
	Query        jsontext.Value `json:"query"`
	Documents    jsontext.Value `json:"documents"`
	Include      jsontext.Value `json:"include"`

	raw      []byte
	filename string // of a form's file
	file     []byte
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// options accept what the providers accept: names given twice, of which the last counts.
var options = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

func (b *body) read(contentType string, raw []byte) error {
	b.raw = raw
	if kind, parameters, err := mime.ParseMediaType(contentType); err == nil && kind == "multipart/form-data" {
		return b.readForm(multipart.NewReader(bytes.NewReader(raw), parameters["boundary"]))
	}
	if len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, b, options); err != nil {
		// A provider refuses a member of a wrong type by its own words; the mock only says that it cannot read it.
		return fmt.Errorf("read body: %w", err)
	}
	return nil
}

func (b *body) readForm(form *multipart.Reader) error {
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read form: %w", err)
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return fmt.Errorf("read part of form: %w", err)
		}
		switch part.FormName() {
		case "file", "image", "image[]", "mask":
			b.filename, b.file = part.FileName(), value
		case "n":
			b.N, _ = strconv.Atoi(string(value)) // what is no number asks for one
		case "prompt":
			b.Prompt = quote(string(value))
		case "response_format":
			b.ResponseFormat = quote(string(value))
		case "model":
			b.Model = string(value)
		case "purpose":
			b.Purpose = string(value)
		case "stream":
			b.Stream = string(value) == "true"
		}
	}
}

// member returns the string of a member of the body, empty if it is absent or no string.
func (b *body) member(name string) string {
	if name == "model" {
		return b.Model
	}
	var members map[string]jsontext.Value
	if json.Unmarshal(b.raw, &members, options) != nil {
		return ""
	}
	var text string
	if json.Unmarshal(members[name], &text, options) != nil {
		return ""
	}
	return text
}

// choices returns how many answers are asked for, 1 to 128.
func (b *body) choices() int { return min(max(b.N, 1), 128) }

// limit returns how many output tokens the request allows, or otherwise.
func (b *body) limit(otherwise int) int {
	for _, limit := range []*int{b.MaxCompletionTokens, b.MaxOutputTokens, b.MaxTokens, b.Generation.MaxOutputTokens, b.Inference.MaxTokens} {
		if limit != nil {
			return max(*limit, 0)
		}
	}
	return otherwise
}

// promptTokens is a quarter of the bytes of the prompt's text, as the package says.
func (b *body) promptTokens() int {
	bytes := 0
	for _, value := range []jsontext.Value{b.Contents, b.SystemText, b.Messages, b.Input, b.Prompt, b.System, b.Instructions, b.Query, b.Documents} {
		bytes += textBytes(value)
	}
	return max((bytes+3)/4, 1)
}

// unread names members whose strings are no text that a model reads.
const unread = " role type id name url data detail media_type call_id tool_call_id "

func textBytes(value jsontext.Value) int {
	if len(value) == 0 {
		return 0
	}
	decoder := jsontext.NewDecoder(bytes.NewReader(value), options)
	total := 0
	for {
		token, err := decoder.ReadToken()
		if err != nil {
			return total // its end: the value was valid
		}
		if token.Kind() != '"' {
			continue
		}
		text := token.String()
		if kind, length := decoder.StackIndex(decoder.StackDepth()); kind != '{' {
			total += len(text)
		} else if length%2 == 1 && strings.Contains(unread, " "+text+" ") {
			if decoder.SkipValue() != nil {
				return total
			}
		} else if length%2 == 0 {
			total += len(text)
		}
	}
}
