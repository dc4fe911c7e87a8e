package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	claude "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// anthropicSDKs returns the libraries of Anthropic's API.
func anthropicSDKs(t *testing.T) []sdk {
	t.Helper()
	node := startNode(t, "worker.mjs")
	return []sdk{
		{name: "anthropic-sdk-go", do: anthropicGo, stainless: true},
		{name: "anthropic-sdk-node", stainless: true, do: func(ctx context.Context, k task) report {
			k.Library = "anthropic"
			return node(ctx, k)
		}},
	}
}

// anthropicGo does a task with github.com/anthropics/anthropic-sdk-go.
func anthropicGo(ctx context.Context, k task) report {
	return measured(k, func(h *http.Client, r *report) error {
		options := []option.RequestOption{option.WithoutEnvironmentDefaults(), option.WithBaseURL(k.BaseURL), option.WithHTTPClient(h)}
		if k.Bearer {
			options = append(options, option.WithAuthToken(k.Key))
		} else {
			options = append(options, option.WithAPIKey(k.Key))
		}
		if k.MaxRetries != nil {
			options = append(options, option.WithMaxRetries(*k.MaxRetries))
		}
		return claudeTask{claude.NewClient(options...), k, r}.do(ctx)
	}, explainClaude)
}

// claudeTask is a task on its way through anthropic-sdk-go.
type claudeTask struct {
	claude.Client
	task
	report *report
}

func (c claudeTask) do(ctx context.Context) error {
	switch c.Op {
	case opMessages:
		var raw *http.Response
		answer, err := c.Client.Messages.New(ctx, c.request(), option.WithResponseInto(&raw))
		if err != nil {
			return err
		}
		c.message(answer)
		c.report.RequestID = raw.Header.Get("Request-Id")
	case opMessagesStream:
		return c.stream(ctx)
	case opMessagesHelper:
		return c.accumulate(ctx)
	case opMessagesTools:
		return c.tools(ctx)
	case opCountTokens:
		count, err := c.Client.Messages.CountTokens(ctx, claude.MessageCountTokensParams{
			Model: c.Model, Messages: c.request().Messages,
		})
		if err != nil {
			return err
		}
		c.report.Usage = &usage{Input: count.InputTokens}
	case opModels:
		pages := c.Client.Models.ListAutoPaging(ctx, claude.ModelListParams{})
		for pages.Next() {
			c.report.Models = append(c.report.Models, pages.Current().ID)
		}
		return pages.Err()
	case opModel:
		m, err := c.Client.Models.Get(ctx, c.Model, claude.ModelGetParams{})
		if err != nil {
			return err
		}
		c.report.Models = []string{m.ID}
	default:
		return fmt.Errorf("anthropic-sdk-go has no %s", c.Op)
	}
	return nil
}

func (c claudeTask) request() claude.MessageNewParams {
	limit := c.MaxTokens
	if limit == 0 {
		limit = 1000
	}
	return claude.MessageNewParams{
		Model: c.Model, MaxTokens: int64(limit),
		Messages: []claude.MessageParam{claude.NewUserMessage(claude.NewTextBlock(c.Text))},
	}
}

func (c claudeTask) message(m *claude.Message) {
	c.report.Texts, c.report.Finish = []string{""}, []string{string(m.StopReason)}
	for _, block := range m.Content {
		switch block := block.AsAny().(type) {
		case claude.TextBlock:
			c.report.Texts[0] += block.Text
		case claude.ThinkingBlock:
			c.report.Thinking, c.report.Signature = block.Thinking, block.Signature
		case claude.ToolUseBlock:
			c.report.Tools = append(c.report.Tools, toolCall{block.ID, block.Name, string(block.Input)})
		}
	}
	c.report.Usage = &usage{m.Usage.InputTokens, m.Usage.OutputTokens}
}

func (c claudeTask) stream(ctx context.Context) error {
	stream := c.Client.Messages.NewStreaming(ctx, c.request())
	defer func() { _ = stream.Close() }()
	for stream.Next() {
		c.report.Frames++
		switch ev := stream.Current().AsAny().(type) {
		case claude.MessageStartEvent:
			c.report.Usage = &usage{Input: ev.Message.Usage.InputTokens}
		case claude.ContentBlockDeltaEvent:
			c.report.say(0, ev.Delta.Text, "")
		case claude.MessageDeltaEvent:
			c.report.say(0, "", string(ev.Delta.StopReason))
			c.report.Usage.Output = ev.Usage.OutputTokens
		}
	}
	return stream.Err()
}

// accumulate reads a stream through the library's accumulator, which is strict about the order of events.
func (c claudeTask) accumulate(ctx context.Context) error {
	request := c.request()
	if c.Tools {
		request.Tools = claudeTools()
	}
	stream := c.Client.Messages.NewStreaming(ctx, request)
	defer func() { _ = stream.Close() }()
	var whole claude.Message
	for stream.Next() {
		if err := whole.Accumulate(stream.Current()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	c.message(&whole)
	return nil
}

func claudeTools() []claude.ToolUnionParam {
	return []claude.ToolUnionParam{{OfTool: &claude.ToolParam{Name: "weather", InputSchema: claude.ToolInputSchemaParam{
		Properties: weatherParameters["properties"], Required: []string{"city"},
	}}}}
}

func (c claudeTask) tools(ctx context.Context) error {
	request := c.request()
	request.Tools = claudeTools()
	first, err := c.Client.Messages.New(ctx, request)
	if err != nil {
		return err
	}
	c.message(first)
	var results []claude.ContentBlockParamUnion
	for _, call := range c.report.Tools {
		results = append(results, claude.NewToolResultBlock(call.ID, "21 degrees", false))
	}
	request.Messages = append(request.Messages, first.ToParam(), claude.NewUserMessage(results...))
	request.Model = c.SecondModel
	second, err := c.Client.Messages.New(ctx, request)
	if err == nil {
		c.message(second)
	}
	return err
}

func explainClaude(err error) *sdkError {
	e := &sdkError{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	api, ok := errors.AsType[*claude.Error](err)
	if !ok {
		return e
	}
	var said struct {
		Error struct{ Type, Message, Code string }
	}
	e.API = json.Unmarshal([]byte(api.RawJSON()), &said) == nil
	e.Status, e.Type, e.Code, e.Message = api.StatusCode, said.Error.Type, said.Error.Code, said.Error.Message
	e.RequestID = api.RequestID
	if api.Response != nil {
		e.RetryAfter = api.Response.Header.Get("Retry-After")
	}
	return e
}
