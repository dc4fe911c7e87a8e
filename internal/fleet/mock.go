package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// Mock is the scripted upstream as a process of its own; BaseURL is where it listens.
type Mock struct{ *Process }

// Count is what the mock has seen.
type Count struct {
	Requests    int64 `json:"count"`
	InFlight    int64 `json:"in_flight"`
	InFlightMax int64 `json:"in_flight_max"`
	Aborted     int64 `json:"aborted"`
	Ended       int64 `json:"ended"`
}

// Count reads the mock's counters. A query such as in_flight=200&timeout=30s waits until so many are reached.
func (m *Mock) Count(ctx context.Context, query url.Values) (Count, error) {
	var c Count
	text, err := m.call(ctx, http.MethodGet, "/_count?"+query.Encode(), nil)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("read counters of the mock: %w", err)
	}
	return c, nil
}

// Script adds a rule to the mock, such as {"script": "hold", "times": 3}.
func (m *Mock) Script(ctx context.Context, rule Object) error {
	body, err := json.Marshal(rule)
	if err != nil {
		return fmt.Errorf("write rule of the mock: %w", err)
	}
	_, err = m.call(ctx, http.MethodPost, "/_script", body)
	return err
}

// ForgetScripts drops all rules.
func (m *Mock) ForgetScripts(ctx context.Context) error {
	_, err := m.call(ctx, http.MethodDelete, "/_script", nil)
	return err
}

// Release lets requests that wait go on; a query such as id=4&steps=2 narrows it. It is no fault if none waits.
func (m *Mock) Release(ctx context.Context, query url.Values) error {
	_, err := m.call(ctx, http.MethodPost, "/_release?"+query.Encode(), nil)
	if refused, ok := errors.AsType[*StatusError](err); ok && refused.Status == http.StatusNotFound {
		return nil
	}
	return err
}

func (m *Mock) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	status, text, err := exchange(ctx, m.client, method, m.BaseURL+path, nil, body)
	if err != nil {
		return nil, fmt.Errorf("ask the mock: %w", err)
	}
	if status < 200 || status > 299 {
		return nil, fmt.Errorf("ask the mock: %s %s: %w", method, path, &StatusError{status, string(text)})
	}
	return text, nil
}
