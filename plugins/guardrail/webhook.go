package guardrail

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

const (
	webhookTimeout = 2 * time.Second // where the rule names none
	webhookCalls   = 64              // at once, of all webhooks
	maxVerdict     = 4 << 20         // bytes of a webhook's answer
)

// webhooks calls the guardrails that somebody else runs.
type webhooks struct {
	client *http.Client
	slots  chan struct{}
}

// newWebhooks makes a client that goes where the rule says and nowhere else: it follows no redirects and asks no proxy, and
// control may refuse an address before it is connected to.
func newWebhooks(control func(ctx context.Context, network, address string, c syscall.RawConn) error) *webhooks {
	dialer := &net.Dialer{Timeout: 5 * time.Second, ControlContext: control}
	return &webhooks{
		client: &http.Client{
			Transport: &http.Transport{
				DialContext: dialer.DialContext, MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
				TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: 16 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		slots: make(chan struct{}, webhookCalls),
	}
}

// question is what a webhook is sent.
type question struct {
	RequestID    string   `json:"request_id"`
	Guardrail    string   `json:"guardrail"`
	Stage        string   `json:"stage"`
	Organization string   `json:"organization"`
	Team         string   `json:"team,omitempty"`
	Key          string   `json:"key"`
	Route        string   `json:"route"`
	Model        string   `json:"model"`
	Texts        []string `json:"texts"`
}

// reply is what a webhook answers.
type reply struct {
	Action string    `json:"action"` // allow, mask or block
	Texts  []*string `json:"texts"`  // of mask: as many as were sent
}

func (r *reply) texts() []string {
	all := make([]string, len(r.Texts))
	for i := range r.Texts {
		all[i] = *r.Texts[i]
	}
	return all
}

// told is what all webhooks together decided.
type told struct {
	by    *rail    // blocks; nil: none does
	texts []string // nil: they stay
}

// ask shows texts to each webhook among the rails in turn; each sees what the one before it left.
func (p *plugin) ask(ctx context.Context, c *plugins.Call, rails []*rail, stage governance.GuardrailStage, texts []string, found *hits) (told, error) {
	var out told
	for _, r := range rails {
		if r.Rule.Type != governance.RuleWebhook {
			continue
		}
		said, err := p.webhooks.call(ctx, r, question{
			RequestID: c.ID.String(), Guardrail: r.ID, Stage: string(stage), Organization: c.Principal.Organization.ID,
			Team: c.Principal.Team.ID, Key: c.Principal.Key.ID, Route: c.Route, Model: c.Model, Texts: texts,
		})
		if err != nil {
			if p.spares(r, err) {
				continue
			}
			return out, err
		}
		if said.Action == "allow" {
			continue
		}
		found.add(r)
		switch {
		case !r.acts():
		case said.Action == "block" || r.Action == governance.ActionBlock:
			out.by = r
			return out, nil
		default:
			texts = said.texts()
			out.texts = texts
		}
	}
	return out, nil
}

// call asks one webhook. Its errors say nothing of what was sent or answered.
func (w *webhooks) call(ctx context.Context, r *rail, q question) (reply, error) {
	timeout := webhookTimeout
	if r.Rule.Timeout > 0 {
		timeout = time.Duration(r.Rule.Timeout) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return reply{}, errors.New("call webhook: too many are under way")
	}
	body, err := json.Marshal(q)
	if err != nil {
		return reply{}, errors.New("write question")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Rule.URL, bytes.NewReader(body))
	if err != nil {
		return reply{}, errors.New("build request of webhook")
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Tollgate-Timestamp", at)
	if !r.Secret.IsZero() {
		mac := hmac.New(sha256.New, []byte(r.Secret.Reveal()))
		mac.Write([]byte(at + "."))
		mac.Write(body)
		req.Header.Set("Tollgate-Signature", "v1="+hex.EncodeToString(mac.Sum(nil)))
	}
	response, err := w.client.Do(req)
	if err != nil {
		return reply{}, fmt.Errorf("call webhook: %w", withoutURL(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return reply{}, fmt.Errorf("call webhook: status %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxVerdict+1))
	if err != nil {
		return reply{}, fmt.Errorf("read verdict of webhook: %w", withoutURL(err))
	}
	if len(text) > maxVerdict {
		return reply{}, fmt.Errorf("verdict of webhook is larger than %d bytes", maxVerdict)
	}
	var said reply
	if json.Unmarshal(text, &said) != nil {
		return reply{}, errors.New("verdict of webhook is no JSON")
	}
	switch {
	case said.Action == "allow", said.Action == "block":
	case said.Action == "mask" && len(said.Texts) == len(q.Texts):
		if slices.Contains(said.Texts, nil) {
			return reply{}, errors.New("verdict of webhook has a text that is null")
		}
	case said.Action == "mask":
		return reply{}, fmt.Errorf("verdict of webhook has %d texts for %d", len(said.Texts), len(q.Texts))
	default:
		return reply{}, errors.New("verdict of webhook is none of allow, mask, block")
	}
	return said, nil
}

// withoutURL takes the address out of an error: its query may hold a credential.
func withoutURL(err error) error {
	type addressed interface{ Unwrap() error }
	if inner, ok := err.(addressed); ok && inner.Unwrap() != nil {
		return inner.Unwrap()
	}
	return err
}
