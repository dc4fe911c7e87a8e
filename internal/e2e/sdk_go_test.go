package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	official "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	community "github.com/sashabaranov/go-openai"
)

// goOpenAI does a task with github.com/sashabaranov/go-openai.
func goOpenAI(ctx context.Context, k task) report {
	return measured(k, func(h *http.Client, r *report) error {
		config := community.DefaultConfig(k.Key)
		config.BaseURL, config.HTTPClient = k.BaseURL, h
		return communityTask{community.NewClientWithConfig(config), k, r}.do(ctx)
	}, explainCommunity)
}

// communityTask is a task on its way through go-openai.
type communityTask struct {
	*community.Client
	task
	report *report
}

func (c communityTask) do(ctx context.Context) error {
	switch c.Op {
	case opChat:
		answer, err := c.CreateChatCompletion(ctx, c.chat())
		if err != nil {
			return err
		}
		c.choices(answer.Choices)
		c.report.Usage = &usage{int64(answer.Usage.PromptTokens), int64(answer.Usage.CompletionTokens)}
		c.report.RequestID = answer.Header().Get("X-Request-Id")
	case opStream:
		return c.stream(ctx)
	case opTools:
		return c.tools(ctx)
	case opEmbeddings:
		answer, err := c.CreateEmbeddings(ctx, community.EmbeddingRequest{
			Input: c.Text, Model: community.EmbeddingModel(c.Model), EncodingFormat: community.EmbeddingEncodingFormat(c.Format),
		})
		if err != nil {
			return err
		}
		for _, x := range answer.Data[0].Embedding {
			c.report.Vector = append(c.report.Vector, float64(x))
		}
		c.report.Usage = &usage{Input: int64(answer.Usage.PromptTokens)}
	case opResponses:
		answer, err := c.CreateResponse(ctx, community.CreateResponseRequest{Model: c.Model, Input: c.Text})
		if err != nil {
			return err
		}
		c.responded(answer)
		return c.report.sayOutput(answer.Output)
	case opResponsesStream:
		return c.responsesStream(ctx)
	case opModerations:
		answer, err := c.Moderations(ctx, community.ModerationRequest{Model: c.Model, Input: c.Text})
		if err != nil {
			return err
		}
		c.report.Flagged = &answer.Results[0].Flagged
	case opModels:
		list, err := c.ListModels(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Models {
			c.report.Models = append(c.report.Models, m.ID)
		}
	case opModel:
		m, err := c.GetModel(ctx, c.Model)
		if err != nil {
			return err
		}
		c.report.Models = []string{m.ID}
	default:
		return fmt.Errorf("go-openai has no %s", c.Op)
	}
	return nil
}

func (c communityTask) chat() community.ChatCompletionRequest {
	request := community.ChatCompletionRequest{
		Model: c.Model, N: c.N, MaxTokens: c.MaxTokens, //nolint:staticcheck // clients in the field send it
		Messages: []community.ChatCompletionMessage{{Role: community.ChatMessageRoleUser, Content: c.Text}},
	}
	if c.IncludeUsage != nil {
		request.StreamOptions = &community.StreamOptions{IncludeUsage: *c.IncludeUsage}
	}
	return request
}

func (c communityTask) choices(choices []community.ChatCompletionChoice) {
	for _, choice := range choices {
		c.report.say(choice.Index, choice.Message.Content, string(choice.FinishReason))
	}
}

func (c communityTask) stream(ctx context.Context) error {
	stream, err := c.CreateChatCompletionStream(ctx, c.chat())
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		c.report.Frames++
		if chunk.Usage != nil {
			c.report.UsageFrames++
			c.report.Usage = &usage{int64(chunk.Usage.PromptTokens), int64(chunk.Usage.CompletionTokens)}
		}
		for _, choice := range chunk.Choices {
			c.report.say(choice.Index, choice.Delta.Content, string(choice.FinishReason))
		}
	}
}

func (c communityTask) tools(ctx context.Context) error {
	request := c.chat()
	request.Tools = []community.Tool{{Type: community.ToolTypeFunction, Function: &community.FunctionDefinition{
		Name: "weather", Parameters: weatherParameters,
	}}}
	first, err := c.CreateChatCompletion(ctx, request)
	if err != nil {
		return err
	}
	message := first.Choices[0].Message
	request.Messages = append(request.Messages, message)
	for _, call := range message.ToolCalls {
		c.report.Tools = append(c.report.Tools, toolCall{call.ID, call.Function.Name, call.Function.Arguments})
		request.Messages = append(request.Messages, community.ChatCompletionMessage{
			Role: community.ChatMessageRoleTool, ToolCallID: call.ID, Content: "21 degrees",
		})
	}
	request.Model = c.SecondModel
	second, err := c.CreateChatCompletion(ctx, request)
	if err == nil {
		c.choices(second.Choices)
	}
	return err
}

func (c communityTask) responded(answer community.CreateResponseResponse) {
	c.report.say(0, "", string(answer.Status))
	if answer.Usage != nil {
		c.report.Usage = &usage{int64(answer.Usage.InputTokens), int64(answer.Usage.OutputTokens)}
	}
}

func (c communityTask) responsesStream(ctx context.Context) error {
	stream, err := c.CreateResponseStream(ctx, community.CreateResponseRequest{Model: c.Model, Input: c.Text})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		c.report.Frames++
		switch event.Type {
		case community.ResponseStreamEventOutputTextDelta:
			c.report.say(0, event.Delta, "")
		case community.ResponseStreamEventCompleted:
			c.responded(*event.Response)
		case community.ResponseStreamEventError:
			return &typedEventError{code: event.Code, message: event.Message}
		}
	}
}

func explainCommunity(err error) *sdkError {
	e := &sdkError{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	if event, ok := errors.AsType[*typedEventError](err); ok {
		return event.explain()
	}
	if api, ok := errors.AsType[*community.APIError](err); ok {
		e.API, e.Status, e.Type, e.Message = true, api.HTTPStatusCode, api.Type, api.Message
		if api.Code != nil && api.Code != 0 { // this library reads null as 0
			e.Code = fmt.Sprint(api.Code)
		}
		if api.Param != nil {
			e.Param = *api.Param
		}
	} else if request, ok := errors.AsType[*community.RequestError](err); ok {
		e.Status = request.HTTPStatusCode
	}
	return e
}

// typedEventError is the error event of a Responses stream, which the Go libraries hand out like any other event.
type typedEventError struct{ code, message string }

func (e *typedEventError) Error() string { return e.code + ": " + e.message }

func (e *typedEventError) explain() *sdkError {
	return &sdkError{Class: "error event", API: true, Code: e.code, Message: e.message}
}

var weatherParameters = map[string]any{
	"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"},
}

// sayOutput takes the text of a Responses output that a library has left undecoded.
func (r *report) sayOutput(output []any) error {
	raw, err := json.Marshal(output)
	if err != nil {
		return err
	}
	var items []struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	if err := json.Unmarshal(raw, &items); err != nil {
		return err
	}
	for _, item := range items {
		for _, part := range item.Content {
			r.say(0, part.Text, "")
		}
	}
	return nil
}

// openAIGo does a task with github.com/openai/openai-go.
func openAIGo(ctx context.Context, k task) report {
	return measured(k, func(h *http.Client, r *report) error {
		options := []option.RequestOption{option.WithBaseURL(k.BaseURL), option.WithAPIKey(k.Key), option.WithHTTPClient(h)}
		if k.MaxRetries != nil {
			options = append(options, option.WithMaxRetries(*k.MaxRetries))
		}
		return officialTask{official.NewClient(options...), k, r}.do(ctx)
	}, explainOfficial)
}

// officialTask is a task on its way through openai-go.
type officialTask struct {
	official.Client
	task
	report *report
}

func (c officialTask) do(ctx context.Context) error {
	switch c.Op {
	case opChat:
		var raw *http.Response
		answer, err := c.Client.Chat.Completions.New(ctx, c.chat(), option.WithResponseInto(&raw))
		if err != nil {
			return err
		}
		c.choices(answer.Choices)
		c.report.Usage = &usage{answer.Usage.PromptTokens, answer.Usage.CompletionTokens}
		c.report.RequestID = raw.Header.Get("X-Request-Id")
	case opStream:
		return c.stream(ctx)
	case opStreamHelper:
		return c.accumulate(ctx)
	case opTools:
		return c.tools(ctx)
	case opEmbeddings:
		return c.embed(ctx)
	case opResponses:
		answer, err := c.Client.Responses.New(ctx, c.response())
		if err != nil {
			return err
		}
		c.report.say(0, answer.OutputText(), string(answer.Status))
		c.report.Usage = &usage{answer.Usage.InputTokens, answer.Usage.OutputTokens}
	case opResponsesStream:
		return c.responsesStream(ctx)
	case opModerations:
		answer, err := c.Client.Moderations.New(ctx, official.ModerationNewParams{
			Model: c.Model, Input: official.ModerationNewParamsInputUnion{OfString: param.NewOpt(c.Text)},
		})
		if err != nil {
			return err
		}
		c.report.Flagged = &answer.Results[0].Flagged
	case opModels:
		pages := c.Client.Models.ListAutoPaging(ctx)
		for pages.Next() {
			c.report.Models = append(c.report.Models, pages.Current().ID)
		}
		return pages.Err()
	case opModel:
		m, err := c.Client.Models.Get(ctx, c.Model)
		if err != nil {
			return err
		}
		c.report.Models = []string{m.ID}
	default:
		return fmt.Errorf("openai-go has no %s", c.Op)
	}
	return nil
}

func (c officialTask) chat() official.ChatCompletionNewParams {
	request := official.ChatCompletionNewParams{
		Model: c.Model, Messages: []official.ChatCompletionMessageParamUnion{official.UserMessage(c.Text)},
	}
	if c.N > 0 {
		request.N = param.NewOpt(int64(c.N))
	}
	if c.MaxTokens > 0 {
		request.MaxTokens = param.NewOpt(int64(c.MaxTokens))
	}
	if c.IncludeUsage != nil {
		request.StreamOptions.IncludeUsage = param.NewOpt(*c.IncludeUsage)
	}
	return request
}

var weatherTool = []official.ChatCompletionToolUnionParam{
	official.ChatCompletionFunctionTool(official.FunctionDefinitionParam{Name: "weather", Parameters: weatherParameters}),
}

func (c officialTask) choices(choices []official.ChatCompletionChoice) {
	for _, choice := range choices {
		c.report.say(int(choice.Index), choice.Message.Content, choice.FinishReason)
	}
}

func (c officialTask) calls(m official.ChatCompletionMessage) {
	for _, call := range m.ToolCalls {
		c.report.Tools = append(c.report.Tools, toolCall{call.ID, call.Function.Name, call.Function.Arguments})
	}
}

func (c officialTask) stream(ctx context.Context) error {
	stream := c.Client.Chat.Completions.NewStreaming(ctx, c.chat())
	defer func() { _ = stream.Close() }()
	for stream.Next() {
		chunk := stream.Current()
		c.report.Frames++
		if chunk.JSON.Usage.Valid() {
			c.report.UsageFrames++
			c.report.Usage = &usage{chunk.Usage.PromptTokens, chunk.Usage.CompletionTokens}
		}
		for _, choice := range chunk.Choices {
			c.report.say(int(choice.Index), choice.Delta.Content, choice.FinishReason)
		}
	}
	return stream.Err()
}

// errRejected says that the library's own accumulator does not accept a frame.
var errRejected = errors.New("accumulator rejects a frame")

func (c officialTask) accumulate(ctx context.Context) error {
	request := c.chat()
	if c.Tools {
		request.Tools = weatherTool
	}
	stream := c.Client.Chat.Completions.NewStreaming(ctx, request)
	defer func() { _ = stream.Close() }()
	var whole official.ChatCompletionAccumulator
	for stream.Next() {
		if !whole.AddChunk(stream.Current()) {
			return errRejected
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	c.choices(whole.Choices)
	c.calls(whole.Choices[0].Message)
	c.report.Usage = &usage{whole.Usage.PromptTokens, whole.Usage.CompletionTokens}
	return nil
}

func (c officialTask) tools(ctx context.Context) error {
	request := c.chat()
	request.Tools = weatherTool
	first, err := c.Client.Chat.Completions.New(ctx, request)
	if err != nil {
		return err
	}
	message := first.Choices[0].Message
	c.calls(message)
	request.Messages = append(request.Messages, message.ToParam())
	for _, call := range message.ToolCalls {
		request.Messages = append(request.Messages, official.ToolMessage("21 degrees", call.ID))
	}
	request.Model = c.SecondModel
	second, err := c.Client.Chat.Completions.New(ctx, request)
	if err == nil {
		c.choices(second.Choices)
	}
	return err
}

func (c officialTask) embed(ctx context.Context) error {
	answer, err := c.Client.Embeddings.New(ctx, official.EmbeddingNewParams{
		Model: c.Model, Input: official.EmbeddingNewParamsInputUnion{OfString: param.NewOpt(c.Text)},
		EncodingFormat: official.EmbeddingNewParamsEncodingFormat(c.Format),
	})
	if err != nil {
		return err
	}
	c.report.Usage = &usage{Input: answer.Usage.PromptTokens}
	if c.Format == "base64" { // this library leaves its decoding to the caller
		c.report.Vector, err = decodeVector(answer.Data[0].RawJSON())
		return err
	}
	c.report.Vector = answer.Data[0].Embedding
	return nil
}

func (c officialTask) response() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: c.Model, Input: responses.ResponseNewParamsInputUnion{OfString: param.NewOpt(c.Text)}}
}

func (c officialTask) responsesStream(ctx context.Context) error {
	stream := c.Client.Responses.NewStreaming(ctx, c.response())
	defer func() { _ = stream.Close() }()
	for stream.Next() {
		event := stream.Current()
		c.report.Frames++
		switch event.Type {
		case "response.output_text.delta":
			c.report.say(0, event.Delta, "")
		case "response.completed":
			c.report.say(0, "", string(event.Response.Status))
			c.report.Usage = &usage{event.Response.Usage.InputTokens, event.Response.Usage.OutputTokens}
		case "error":
			return &typedEventError{code: event.Code, message: event.Message}
		}
	}
	return stream.Err()
}

func explainOfficial(err error) *sdkError {
	e := &sdkError{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	if event, ok := errors.AsType[*typedEventError](err); ok {
		return event.explain()
	}
	if api, ok := errors.AsType[*official.Error](err); ok {
		e.API, e.Status, e.Code, e.Type, e.Param, e.Message = true, api.StatusCode, api.Code, api.Type, api.Param, api.Message
		e.RequestID, e.RetryAfter = api.Response.Header.Get("X-Request-Id"), api.Response.Header.Get("Retry-After")
	} else if stream, ok := errors.AsType[*ssestream.StreamError](err); ok {
		var said struct {
			Error official.Error `json:"error"`
		}
		e.API = json.Unmarshal([]byte(strings.TrimSpace(string(stream.Event.Data))), &said) == nil
		e.Code, e.Type, e.Message = said.Error.Code, said.Error.Type, said.Error.Message
	}
	return e
}
