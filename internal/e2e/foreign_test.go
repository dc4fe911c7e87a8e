package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// foreign is a provider whose dialect no client speaks, with clients of both dialects.
type foreign struct {
	*fleet
	scripts        map[string]string // that its models follow, by their names
	key            string
	openAI, claude sdk
}

// foreign makes a provider, and a model for each script of the mock.
func (f *fleet) foreign(provider object, scripts map[string]string) *foreign {
	f.t.Helper()
	provider["price_provider"] = "mock"
	id := f.create("providers", provider)["id"]
	for name, script := range scripts {
		for unit, price := range map[string]string{"input": inputPrice, "output": outputPrice, "cache_read": "0.2"} {
			f.create("prices", object{
				"provider": "mock", "upstream_model": "mock-" + script, "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z",
			})
		}
		f.create("models", object{"name": name, "targets": []object{{"provider_id": id, "upstream_model": "mock-" + script, "weight": 1, "priority": 0}}})
	}
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}})
	for name := range scripts {
		f.awaitModels(key, name)
	}
	return &foreign{f, scripts, key, sdk{name: "go-openai", do: goOpenAI}, sdk{name: "anthropic-sdk-go", do: anthropicGo}}
}

// ask is an SDK's task for one of the models. Nothing is tried again.
func (p *foreign) ask(op, model string) task {
	k := task{Op: op, BaseURL: p.gateways[0].baseURL, Key: p.key, Model: model, Text: "hello", MaxRetries: pointer(0)}
	if !strings.HasPrefix(op, "messages") {
		k.BaseURL += "/v1"
	}
	return k
}

// converse makes clients of both dialects talk to a model, and use two tools at once of another one.
func (p *foreign) converse(t *testing.T, model, withTools string) {
	t.Helper()
	streamed := p.ask(opStream, model)
	streamed.IncludeUsage = pointer(true)
	for _, k := range []task{p.ask(opChat, model), streamed} {
		r := done(t, p.openAI, k)
		require.Equal(t, saidWords, r.Texts)
		require.Equal(t, []string{"stop"}, r.Finish)
		require.Equal(t, helloUsage(1), r.Usage)
	}
	for _, k := range []task{p.ask(opMessages, model), p.ask(opMessagesHelper, model)} {
		r := done(t, p.claude, k)
		require.Equal(t, saidWords, r.Texts)
		require.Equal(t, []string{"end_turn"}, r.Finish)
		require.Equal(t, helloUsage(1), r.Usage)
	}
	for lib, op := range map[*sdk]string{&p.openAI: opTools, &p.claude: opMessagesTools} {
		k := p.ask(op, withTools)
		k.SecondModel = model
		r := done(t, *lib, k)
		require.Len(t, r.Tools, 2)
		for i, city := range []string{"Paris", "Rome"} {
			require.Equal(t, "weather", r.Tools[i].Name)
			require.JSONEq(t, `{"city":"`+city+`"}`, r.Tools[i].Arguments)
		}
		require.Equal(t, saidWords, r.Texts, "of the turn with the results")
	}
}

// refuse wants the statuses of models that fail. What is wrong with our credential is not the client's to know (F140).
func (p *foreign) refuse(t *testing.T, throttled, unauthorized, marker string) {
	t.Helper()
	for model, want := range map[string]int{throttled: http.StatusTooManyRequests, unauthorized: http.StatusBadGateway} {
		r := p.claude.do(t.Context(), p.ask(opMessages, model))
		require.NotNil(t, r.Error)
		require.Equal(t, want, r.Error.Status, "%+v", r.Error)
		require.NotContains(t, r.Error.Message, marker)
	}
}

// book calls a model whole and as a stream, and wants the same row of both.
func (p *foreign) book(t *testing.T, model, cost string, quantities object) {
	t.Helper()
	for _, op := range []string{opChat, opStream} {
		require.Equal(t, saidWords, done(t, p.openAI, p.ask(op, model)).Texts)
	}
	var booked []object
	p.eventually(20*time.Second, "both calls are booked", func() bool {
		booked = nil
		for _, row := range p.rows() {
			if row["upstream_model"] == "mock-"+p.scripts[model] {
				booked = append(booked, row)
			}
		}
		return len(booked) == 2
	})
	for _, row := range booked {
		require.Equal(t, cost, row["cost_usd"], "%v", row)
		require.Equal(t, quantities, row["quantities"])
	}
}
