package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// callTimeout bounds one call of the admin API; a ledger check reads the whole ledger.
	callTimeout  = 30 * time.Second
	checkTimeout = 15 * time.Minute
	// maxAnswer is the longest answer that is read, in bytes.
	maxAnswer = 64 << 20
	pageSize  = 250
)

// client is what every command of the admin API has in common.
type client struct {
	URL    string `env:"TOLLGATE_ADMIN_URL" default:"http://127.0.0.1:8081" help:"Where the admin API is (${env})." placeholder:"URL" group:"Connection:"`
	Token  string `env:"TOLLGATE_ADMIN_TOKEN" help:"The admin token (${env})." placeholder:"TOKEN" group:"Connection:"`
	Output string `short:"o" enum:"table,json,yaml" default:"table" help:"Form of the result: ${enum}." group:"Connection:"`
}

// object is a JSON object of the API. Numbers stay as they are written.
type object = map[string]any

// apiError is an answer that is not a success.
type apiError struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	ID     string `json:"request_id"`
	Errors []struct {
		Location string `json:"location"`
		Message  string `json:"message"`
	} `json:"errors"`
}

func (e *apiError) Error() string {
	var b strings.Builder
	b.WriteString(e.Detail)
	if len(e.Errors) > 1 {
		for _, f := range e.Errors {
			b.WriteString("\n  " + strings.TrimPrefix(f.Location, "body.") + ": " + f.Message)
		}
	}
	if hint := e.hint(); hint != "" {
		b.WriteString("\nHint: " + hint)
	}
	return b.String()
}

func (e *apiError) hint() string {
	switch {
	case e.Status == http.StatusUnauthorized:
		return "set TOLLGATE_ADMIN_TOKEN, or pass --token; `tollgate dev` keeps it in secrets.env of its data directory."
	case e.Status == http.StatusPreconditionFailed, e.Status == http.StatusConflict && e.Code == "conflict":
		return "somebody else changed it; look at it again, then repeat the command."
	case e.Status >= http.StatusInternalServerError && e.ID != "":
		return "the server's log has more under request id " + e.ID + "."
	}
	return ""
}

// get reads a resource.
func (c *client) get(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.call(ctx, http.MethodGet, path, nil, callTimeout)
}

// send writes a resource and returns what the API makes of it.
func (c *client) send(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	return c.call(ctx, method, path, body, callTimeout)
}

func (c *client) call(ctx context.Context, method, path string, body any, patience time.Duration) (json.RawMessage, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("%q is not the URL of an admin API\nHint: set TOLLGATE_ADMIN_URL or --url, such as http://127.0.0.1:8081", c.URL)
	}
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+"/admin/v1"+path, reader)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := (&http.Client{Timeout: patience}).Do(request)
	if err != nil {
		return nil, unreachable(c.URL, err)
	}
	defer func() { _ = answer.Body.Close() }() // it was read to its end, or is given up
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", c.URL, err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		problem := &apiError{}
		if json.Unmarshal(text, problem) != nil || problem.Detail == "" {
			problem = &apiError{Status: answer.StatusCode, Detail: fmt.Sprintf("%s answered %s", c.URL, answer.Status)}
		}
		return nil, problem
	}
	return text, nil
}

func unreachable(where string, err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return fmt.Errorf("%s did not answer in time", where)
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("nothing answers at %s\nHint: is the server running? Set TOLLGATE_ADMIN_URL or --url to its control listener", where)
	}
	return fmt.Errorf("call %s: %w", where, err)
}

// all reads every item of a list.
func (c *client) all(ctx context.Context, path string, query url.Values) ([]object, error) {
	items, _, err := c.some(ctx, path, query, 0)
	return items, err
}

// some reads up to most items of a list, 0 meaning all, and says whether there are more.
func (c *client) some(ctx context.Context, path string, query url.Values, most int) (items []object, more bool, err error) {
	if query == nil {
		query = url.Values{}
	}
	for {
		size := pageSize
		if most > 0 {
			size = min(size, most-len(items))
		}
		query.Set("limit", fmt.Sprint(size))
		text, err := c.get(ctx, path, query)
		if err != nil {
			return nil, false, err
		}
		var page struct {
			Items []object `json:"items"`
			Next  *string  `json:"next_cursor"`
		}
		if err := decode(text, &page); err != nil {
			return nil, false, err
		}
		items = append(items, page.Items...)
		if page.Next == nil {
			return items, false, nil
		}
		if most > 0 && len(items) >= most {
			return items, true, nil
		}
		query.Set("cursor", *page.Next)
	}
}

// decode reads JSON and keeps numbers as they are written.
func decode(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// isID reports whether s is a public id with the given prefix; else it is meant as a name.
func isID(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix+"_")
	return ok && len(rest) == 12 && !strings.ContainsFunc(rest, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// idOf finds the id of a resource that is given by id or by name.
func (c *client) idOf(ctx context.Context, path, prefix, given string, query url.Values) (string, error) {
	if isID(prefix, given) {
		return given, nil
	}
	if query == nil {
		query = url.Values{}
	}
	query.Set("name", given)
	found, err := c.all(ctx, "/"+path, query)
	if err != nil {
		return "", err
	}
	singular := strings.TrimSuffix(path, "s")
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no %s named %q\nHint: tollgate %s list", singular, given, command(path))
	case 1:
		return text(found[0], "id"), nil
	}
	ids := make([]string, 0, len(found))
	for _, f := range found {
		ids = append(ids, text(f, "id"))
	}
	return "", fmt.Errorf("%d %s are named %q\nHint: name one by its id: %s", len(found), path, given, strings.Join(ids, ", "))
}

// command is the subcommand of a resource.
func command(path string) string {
	if path == "organizations" {
		return "orgs"
	}
	return path
}
