package translate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// messagesToConverseRequest translates one request.
type messagesToConverseRequest struct {
	in    messagesRequest
	out   converseRequest
	maker maker
	model version
	used  []string        // the names of tools in the conversation
	names map[string]bool // of documents, which must differ
	notes notes
}

// Request implements providers.Translator.
func (messagesToConverse) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	t := messagesToConverseRequest{maker: makerOf(model), model: claudeVersion(model), names: map[string]bool{}}
	if err := decodeRequest(body.Bytes(), &t.in); err != nil {
		return nil, nil, err
	}
	for _, step := range []func() error{t.system, t.messages, t.tools, t.toolChoice, t.output, t.thinking, t.parameters} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	out, err := encode(t.out)
	return out, t.notes, err
}

// system carries the instructions.
func (t *messagesToConverseRequest) system() error {
	if given(t.in.System.other) {
		return refuse("system", "it must be a string or an array of text blocks")
	}
	return t.instruct("system", blocksOf(t.in.System))
}

// instruct adds texts to the instructions.
func (t *messagesToConverseRequest) instruct(at string, blocks []messagesBlock) error {
	for i := range blocks {
		block := &blocks[i]
		if block.Type != "text" || !isString(block.Text) {
			return refuse(fmt.Sprintf("%s[%d].type", at, i), "only text can stand here")
		}
		t.noted(at+"[].", block)
		if hasText(block.Text) {
			t.out.System = t.cached(append(t.out.System, converseBlock{Text: block.Text}), block.CacheControl)
		}
	}
	return nil
}

// noted takes note of what a block has beside its content.
func (t *messagesToConverseRequest) noted(at string, block *messagesBlock) {
	t.notes.dropped(at+"caller", block.Caller, "the target does not tell callers apart")
	if block.Type != "document" {
		t.notes.dropped(at+"citations", block.Citations, "the target takes back no citations")
	}
	t.notes.unknown(at, block.Rest)
}

// cached puts a cache point behind a block that has a marker.
func (t *messagesToConverseRequest) cached(blocks []converseBlock, marker raw) []converseBlock {
	if point := t.point(marker); point != nil {
		return append(blocks, converseBlock{CachePoint: point})
	}
	return blocks
}

// point returns the cache point of a marker; nil where there is none.
func (t *messagesToConverseRequest) point(marker raw) *conversePoint {
	var in struct {
		Type string `json:"type"`
		TTL  string `json:"ttl"`
	}
	switch {
	case !given(marker):
		return nil
	case json.Unmarshal(marker, &in, options) != nil || in.Type != "ephemeral":
		t.notes.add("cache_control", "the target knows the type ephemeral alone")
		return nil
	case !t.maker.caches():
		t.notes.add("cache_control", "the target's model is not known to cache")
		return nil
	}
	point := &conversePoint{Type: "default"}
	if in.TTL == "1h" { // 5 minutes are what it does anyway, and not every model takes a time
		point.TTL = in.TTL
	}
	return point
}

// messages carries the conversation. Neighbours of one role become one turn, so that all results of a turn's tools stand in one.
func (t *messagesToConverseRequest) messages() error {
	for i := range t.in.Messages {
		m := &t.in.Messages[i]
		at := fmt.Sprintf("messages[%d]", i)
		t.notes.unknown("messages[].", m.Rest)
		if m.Content.text == nil && m.Content.parts == nil {
			return refuse(at+".content", "it must be a string or an array of blocks")
		}
		blocks := blocksOf(m.Content)
		switch m.Role {
		case "user", "assistant":
		case "system":
			if len(t.out.Messages) > 0 {
				t.notes.add(at, "moved to the front where the target has its instructions")
			}
			if err := t.instruct(at+".content", blocks); err != nil {
				return err
			}
			continue
		default:
			return refuse(at+".role", "the role must be user, assistant or system")
		}
		var turn []converseBlock
		for j := range blocks {
			block, err := t.block(fmt.Sprintf("%s.content[%d]", at, j), m.Role, &blocks[j])
			if err != nil {
				return err
			}
			if block != nil {
				turn = t.cached(append(turn, *block), blocks[j].CacheControl)
			}
		}
		t.push(m.Role, turn)
	}
	if len(t.out.Messages) == 0 {
		return refuse("messages", "there must be a message that is not empty")
	}
	return nil
}

func (t *messagesToConverseRequest) push(role string, blocks []converseBlock) {
	if len(blocks) == 0 {
		return
	}
	if n := len(t.out.Messages); n > 0 && t.out.Messages[n-1].Role == role {
		t.out.Messages[n-1].Content = append(t.out.Messages[n-1].Content, blocks...)
		return
	}
	t.out.Messages = append(t.out.Messages, converseMessage{Role: role, Content: blocks})
}

// block translates a block of a role; nil: it says nothing to the target.
func (t *messagesToConverseRequest) block(at, role string, block *messagesBlock) (*converseBlock, error) {
	t.noted("messages[].content[].", block)
	switch {
	case block.Type == "tool_result" && role == "user":
		return t.toolResult(at, block)
	case block.Type == "tool_use" && role == "assistant":
		input := block.Input
		if !given(input) {
			input = raw("{}")
		}
		t.used = append(t.used, block.Name)
		return &converseBlock{ToolUse: &converseToolUse{ToolUseID: converseID(block.ID), Name: block.Name, Input: input}}, nil
	case (block.Type == "thinking" || block.Type == "redacted_thinking") && role == "assistant":
		return t.thought(block), nil
	}
	return t.media(at, block)
}

// thought translates thoughts back to where they came from, which their signature tells.
func (t *messagesToConverseRequest) thought(block *messagesBlock) *converseBlock {
	switch {
	case block.Type == "redacted_thinking" && hasText(block.Data):
		return &converseBlock{Reasoning: &converseReasoning{Redacted: block.Data}}
	case block.Type == "thinking" && isString(block.Thinking) && hasText(block.Signature) &&
		!strings.HasPrefix(unquote(block.Signature), thinkingMark):
		return &converseBlock{Reasoning: &converseReasoning{Whole: &converseThought{Text: block.Thinking, Signature: block.Signature}}}
	}
	t.notes.add("messages[].content[]."+block.Type, "the target takes back no thoughts without its own signature")
	return nil
}

// media translates what users and tools say: texts, images, documents. Empty texts, which the target refuses, say nothing.
func (t *messagesToConverseRequest) media(at string, block *messagesBlock) (*converseBlock, error) {
	switch block.Type {
	case "text":
		if blank(block.Text) {
			return nil, nil //nolint:nilnil // it says nothing
		}
		return &converseBlock{Text: block.Text}, nil
	case "image":
		source, err := t.source(at, block.Source)
		if err != nil {
			return nil, err
		}
		format, ok := strings.CutPrefix(source.MediaType, "image/")
		switch {
		case source.Type != "base64":
			return nil, refuse(at+".source.type", "the target takes images in base64 alone")
		case !isString(source.Data):
			return nil, refuse(at+".source.data", "it must be a string")
		case !ok || !strings.Contains(" png jpeg gif webp ", " "+format+" "):
			return nil, refuse(at+".source.media_type", "the target takes images of PNG, JPEG, GIF and WebP alone")
		}
		return &converseBlock{Image: &converseImage{Format: format, Source: converseSource{Bytes: source.Data}}}, nil
	case "document":
		return t.document(at, block)
	}
	return nil, refuse(at+".type", "the target takes no blocks of the type %.40q here", block.Type)
}

func (t *messagesToConverseRequest) source(at string, value raw) (source messagesSource, err error) {
	if len(value) == 0 || json.Unmarshal(value, &source, options) != nil {
		return source, refuse(at+".source", "it must be an object")
	}
	t.notes.unknown("messages[].content[].source.", source.Rest)
	return source, nil
}

// documentFormats are the kinds of document that Converse takes, by their media types.
var documentFormats = map[string]string{
	"application/pdf": "pdf", "text/csv": "csv", "text/html": "html", "text/plain": "txt", "text/markdown": "md",
	"application/msword": "doc", "application/vnd.ms-excel": "xls",
	"application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
	"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet":       "xlsx",
}

func (t *messagesToConverseRequest) document(at string, block *messagesBlock) (*converseBlock, error) {
	source, err := t.source(at, block.Source)
	if err != nil {
		return nil, err
	}
	out := &converseDocument{Format: "txt", Name: t.documentName(unquote(block.Title)), Context: present(block.Context)}
	var citations converseCitations
	if given(block.Citations) && json.Unmarshal(block.Citations, &citations, options) != nil {
		return nil, refuse(at+".citations", "it must be an object")
	}
	if citations.Enabled {
		out.Citations = &citations
	}
	switch source.Type {
	case "base64", "text":
		if !isString(source.Data) {
			return nil, refuse(at+".source.data", "it must be a string")
		}
		if source.Type == "text" {
			out.Source.Text = source.Data
			break
		}
		if out.Format = documentFormats[source.MediaType]; out.Format == "" {
			return nil, refuse(at+".source.media_type", "the target takes no documents of the type %.80q", source.MediaType)
		}
		out.Source.Bytes = source.Data
	case "content":
		for i, inner := range blocksOf(source.Content) {
			if inner.Type != "text" || !isString(inner.Text) {
				return nil, refuse(fmt.Sprintf("%s.source.content[%d].type", at, i), "only text can stand here")
			}
			out.Source.Content = append(out.Source.Content, converseBlock{Text: inner.Text})
		}
	default:
		return nil, refuse(at+".source.type", "the target takes documents as text or in base64 alone")
	}
	return &converseBlock{Document: out}, nil
}

// maxDocumentName is how long a document's name may be.
const maxDocumentName = 180

// documentName makes a title fit: letters, digits, single spaces, hyphens, parentheses and brackets, each name once.
func (t *messagesToConverseRequest) documentName(title string) string {
	name := strings.Join(strings.FieldsFunc(title, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-()[]", r))
	}), " ")
	name = strings.TrimSpace(name[:min(len(name), maxDocumentName)])
	if name == "" {
		name = "document"
	}
	unique := name
	for n := 2; t.names[unique]; n++ {
		unique = name + "-" + strconv.Itoa(n)
	}
	t.names[unique] = true
	return unique
}

// toolResult translates what a tool returned.
func (t *messagesToConverseRequest) toolResult(at string, block *messagesBlock) (*converseBlock, error) {
	if given(block.Content.other) {
		return nil, refuse(at+".content", "it must be a string or an array of blocks")
	}
	result := &converseToolResult{ToolUseID: converseID(block.ToolUseID), Content: []converseBlock{}}
	for i, inner := range blocksOf(block.Content) {
		t.noted("messages[].content[].content[].", &inner)
		t.notes.dropped("cache_control", inner.CacheControl, "the target caches behind whole results alone")
		part, err := t.media(fmt.Sprintf("%s.content[%d]", at, i), &inner)
		if err != nil {
			return nil, err
		}
		if part != nil {
			result.Content = append(result.Content, *part)
		}
	}
	if string(block.IsError) == "true" {
		result.Status = "error"
	}
	return &converseBlock{ToolResult: result}, nil
}

// maxConverseID is how long the id of a call may be.
const maxConverseID = 64

// converseID returns an id of a call that Converse takes. Ids that carry more than themselves are cut to their own.
func converseID(id string) string {
	own, _ := unsealID(id)
	own = toolID(own)
	return own[:min(len(own), maxConverseID)]
}

// tools carries the client's own tools. A conversation that has used tools must come with them, also where the client no longer
// sends any.
func (t *messagesToConverseRequest) tools() error {
	var tools []converseTool
	for i, tool := range t.in.Tools {
		if tool.Type != "" && tool.Type != "custom" {
			return refuse(fmt.Sprintf("tools[%d].type", i), "the target has no tool %.60q of its own", tool.Type)
		}
		t.notes.unknown("tools[].", tool.Rest)
		spec := &converseSpec{Name: tool.Name, InputSchema: converseSchema{JSON: tool.InputSchema}}
		if hasText(tool.Description) {
			spec.Description = tool.Description
		}
		if !given(tool.InputSchema) {
			spec.InputSchema.JSON = raw(`{"type":"object","properties":{}}`)
		}
		if string(tool.Strict) == "true" {
			spec.Strict = tool.Strict
		}
		tools = append(tools, converseTool{Spec: spec})
		if point := t.point(tool.CacheControl); point != nil {
			tools = append(tools, converseTool{CachePoint: point})
		}
	}
	if len(tools) == 0 && len(t.used) > 0 {
		t.notes.add("tools", "those that the conversation has used are declared since the target demands it")
		known := map[string]bool{}
		for _, name := range t.used {
			if !known[name] {
				known[name] = true
				tools = append(tools, converseTool{Spec: &converseSpec{Name: name, InputSchema: converseSchema{JSON: raw(`{"type":"object"}`)}}})
			}
		}
	}
	if len(tools) > 0 {
		t.out.ToolConfig = &converseToolConfig{Tools: tools}
	}
	return nil
}

// toolChoice carries which tools may or must be called. The target has no word for none: its tools are left out then, unless
// the conversation has used them.
func (t *messagesToConverseRequest) toolChoice() error {
	c := t.in.ToolChoice
	if c == nil {
		return nil
	}
	t.notes.unknown("tool_choice.", c.Rest)
	choice := &converseChoice{}
	switch c.Type {
	case "auto":
		choice.Auto = &struct{}{}
	case "any":
		choice.Any = &struct{}{}
	case "tool":
		choice.Tool = &converseName{c.Name}
	case "none":
		choice = nil
		if len(t.used) > 0 {
			t.notes.add("tool_choice", "the target cannot be kept from calling tools that the conversation has used")
		} else {
			t.out.ToolConfig = nil
		}
	default:
		return refuse("tool_choice.type", "it must be auto, any, tool or none")
	}
	if t.out.ToolConfig == nil || len(t.in.Tools) == 0 {
		return nil
	}
	t.out.ToolConfig.Choice = choice
	switch {
	case string(c.DisableParallelToolUse) != "true":
	case c.Type == "auto" && t.model.atLeast(4, 5): // a field of these models, which bears no choice of Converse's beside it
		t.out.ToolConfig.Choice = nil
		t.out.Fields.ToolChoice = &messagesChoice{Type: c.Type, DisableParallelToolUse: c.DisableParallelToolUse}
	default:
		t.notes.add("tool_choice.disable_parallel_tool_use", "the target cannot be kept to one call")
	}
	return nil
}

// output carries the form of the answer, and the effort that it takes.
func (t *messagesToConverseRequest) output() error {
	f, at := t.in.OutputFormat, "output_format"
	var out converseOutput
	if o := t.in.OutputConfig; o != nil {
		t.notes.unknown("output_config.", o.Rest)
		if o.Format != nil {
			f, at = o.Format, "output_config.format"
		}
		switch {
		case !given(o.Effort):
		case t.maker.likeClaude():
			out.Effort = o.Effort
		default:
			t.notes.add("output_config.effort", "the target's model is not known to take an effort")
		}
	}
	if f != nil {
		if f.Type != "json_schema" || !given(f.Schema) {
			return refuse(at, "it must be a json_schema with its schema")
		}
		t.notes.unknown(at+".", f.Rest)
		out.Format = &converseFormat{Type: f.Type}
		out.Format.Structure.JSONSchema.Schema = quote(string(f.Schema))
		out.Format.Structure.JSONSchema.Name = "answer"
	}
	if out.Effort != nil || out.Format != nil {
		t.out.OutputConfig = &out
	}
	return nil
}

// thinking carries how the model may think, which is a field of Anthropic's models alone.
func (t *messagesToConverseRequest) thinking() error {
	if !given(t.in.Thinking) {
		return nil
	}
	var thinking messagesThinking
	if json.Unmarshal(t.in.Thinking, &thinking, options) != nil || thinking.Type == "" {
		return refuse("thinking", "it must be an object with a type")
	}
	switch {
	case t.maker.likeClaude():
		t.out.Fields.Thinking = t.in.Thinking
	case thinking.Type != "disabled":
		t.notes.add("thinking", "the target's model is not known to be told how to think")
	}
	return nil
}

// parameters carries the rest.
func (t *messagesToConverseRequest) parameters() error {
	const none = "the target has no such parameter"
	switch {
	case given(t.in.InferenceGeo) && string(t.in.InferenceGeo) != `"global"`:
		return refuse("inference_geo", "the target does not let callers choose where it computes")
	case !neutral(t.in.MCPServers):
		return refuse("mcp_servers", "the target reaches no MCP servers")
	case !neutral(t.in.Container):
		return refuse("container", "the target has no containers")
	}
	t.out.Inference = converseInference{
		MaxTokens: present(t.in.MaxTokens), Temperature: present(t.in.Temperature), TopP: present(t.in.TopP),
		StopSequences: t.in.StopSequences,
	}
	if len(t.in.StopSequences) > 0 && t.maker == makerAnthropic {
		t.out.AnswerFields = []string{"/stop_sequence"} // which of them it was
	}
	switch {
	case !given(t.in.TopK):
	case t.maker.likeClaude():
		t.out.Fields.TopK = t.in.TopK
	default:
		t.notes.add("top_k", none)
	}
	switch tier := unquote(t.in.ServiceTier); tier {
	case "", "auto":
	case "standard_only":
		t.out.ServiceTier = &converseTier{"default"}
	case "flex", "priority", "reserved":
		t.out.ServiceTier = &converseTier{tier}
	default:
		t.notes.add("service_tier", "the target has no tier of this name")
	}
	if m := t.in.Metadata; m != nil {
		t.notes.unknown("metadata.", m.Rest)
		t.notes.dropped("metadata.user_id", m.UserID, none)
	}
	t.notes.dropped("cache_control", t.in.CacheControl, "the target caches behind marked blocks alone")
	t.notes.dropped("context_management", t.in.ContextManagement, none)
	t.notes.unknown("", t.in.Rest)
	return nil
}
