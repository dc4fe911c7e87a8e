package gateway_test

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	goopenai "github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

func (b *bench) openAI() openai.Client {
	return openai.NewClient(option.WithBaseURL(b.url+"/v1"), option.WithAPIKey(demoKey), option.WithHTTPClient(b.client))
}

func (b *bench) goOpenAI() *goopenai.Client {
	c := goopenai.DefaultConfig(demoKey)
	c.BaseURL, c.HTTPClient = b.url+"/v1", b.client
	return goopenai.NewClientWithConfig(c)
}

func sdkChat(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")}}
}

func TestSDK_OpenAIGo(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.model("broken", "reset_after(3)")
		s.model("refused", "status(400)")
	})
	client := b.openAI()
	answer, err := client.Chat.Completions.New(t.Context(), sdkChat("m"))
	require.NoError(t, err)
	require.NotEmpty(t, answer.Choices[0].Message.Content)

	stream := client.Chat.Completions.NewStreaming(t.Context(), sdkChat("m"))
	text := ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text += c.Delta.Content
		}
	}
	require.NoError(t, stream.Err())
	require.Equal(t, answer.Choices[0].Message.Content, text)

	stream = client.Chat.Completions.NewStreaming(t.Context(), sdkChat("broken"))
	for stream.Next() {
	}
	require.ErrorContains(t, stream.Err(), "upstream_aborted", "F085: a broken stream is an error to the SDK")

	_, err = client.Chat.Completions.New(t.Context(), sdkChat("refused"))
	refusal, ok := errors.AsType[*openai.Error](err)
	require.True(t, ok)
	require.Equal(t, http.StatusBadRequest, refusal.StatusCode)
	require.NotEmpty(t, refusal.Message)

	typed := client.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{Model: "m", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Say hello.")}})
	completed := false
	for typed.Next() {
		completed = completed || typed.Current().Type == "response.completed"
	}
	require.NoError(t, typed.Err())
	require.True(t, completed)

	models, err := client.Models.List(t.Context())
	require.NoError(t, err)
	require.Len(t, models.Data, 3)
}

func TestF215_SDKsDoNotRetryWhatIsFinal(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.limit(governance.KindBudget, governance.MetricCost, 0) })
	_, err := func() (*openai.ChatCompletion, error) {
		client := b.openAI()
		return client.Chat.Completions.New(t.Context(), sdkChat("m"))
	}()
	refusal, ok := errors.AsType[*openai.Error](err)
	require.True(t, ok)
	require.Equal(t, "insufficient_quota", refusal.Type)
	require.Equal(t, "budget_exceeded", refusal.Code)
	require.Equal(t, 1, b.metrics.all()["tollgate_gateway_requests_total{chat.completions,429,budget_exceeded}"])
}

func TestSDK_GoOpenAI(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small"); s.model("broken", "reset_after(3)") })
	client := b.goOpenAI()
	request := goopenai.ChatCompletionRequest{Model: "m", Messages: []goopenai.ChatCompletionMessage{{Role: "user", Content: "Say hello."}}}
	answer, err := client.CreateChatCompletion(t.Context(), request)
	require.NoError(t, err)
	require.NotEmpty(t, answer.Choices[0].Message.Content)
	read := func(model string) error {
		request.Model = model
		stream, err := client.CreateChatCompletionStream(t.Context(), request)
		require.NoError(t, err)
		defer func() { _ = stream.Close() }()
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}
	require.ErrorIs(t, read("m"), io.EOF)
	broken, ok := errors.AsType[*goopenai.APIError](read("broken"))
	require.True(t, ok, "F085")
	require.Equal(t, "upstream_aborted", broken.Code)

	_, err = client.CreateChatCompletion(t.Context(), goopenai.ChatCompletionRequest{Model: "unknown"})
	unknown, ok := errors.AsType[*goopenai.APIError](err)
	require.True(t, ok)
	require.Equal(t, http.StatusNotFound, unknown.HTTPStatusCode)
	require.Equal(t, "model_not_found", unknown.Code)
}
