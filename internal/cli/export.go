package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tollgate-gateway/tollgate/internal/wholefile"
)

type exportCommand struct {
	client

	Format string `enum:"csv,jsonl" default:"csv" help:"csv, or a JSON object a line: ${enum}."`
	Since  string `default:"30d" help:"A span such as 24h, 30d, 4w, or a time." placeholder:"SPAN"`
	Until  string `help:"A time; without it now." placeholder:"TIME"`
	Org    string `help:"Only of this organization." placeholder:"ORG"`
	Team   string `help:"Only of this team." placeholder:"TEAM"`
	Key    string `help:"Only of this key." placeholder:"KEY"`
	Model  string `help:"Only of this model." placeholder:"NAME"`
	To     string `help:"File to write; without it standard output." placeholder:"FILE"`
}

// Help is shown by --help.
func (exportCommand) Help() string {
	return `Every row that is sealed, in the order of the seals, then a trailer with sums, the last block's hash and a checksum. An
export without a trailer is not whole, and the exit code is 1.

Examples:
  tollgate export --since 2026-01-01 --until 2026-02-01 --to january.csv
  tollgate export --team research --format jsonl`
}

func (c *exportCommand) Run(ctx context.Context, k *kong.Context) error {
	spend := spendCommand{client: c.client, Since: c.Since, Until: c.Until, Org: c.Org, Team: c.Team, Key: c.Key, Model: c.Model}
	query, err := spend.query(ctx)
	if err != nil {
		return err
	}
	query.Set("format", c.Format)
	if c.To == "" {
		return c.stream(ctx, query, k.Stdout, k.Stderr)
	}
	return wholefile.Write(c.To, func(w io.Writer) error { return c.stream(ctx, query, w, k.Stderr) })
}

// stream copies an export, looks for its end, and remarks on what it says.
func (c *exportCommand) stream(ctx context.Context, query url.Values, to, remarks io.Writer) error {
	answer, err := c.open(ctx, "/spend/export?"+query.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read to its end, or is given up
	out := bufio.NewWriter(to)
	var last lastLine
	if _, err := io.Copy(io.MultiWriter(out, &last), answer.Body); err != nil {
		return fmt.Errorf("the export was cut off: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write export: %w", err)
	}
	end, whole := last.trailer()
	if !whole {
		return fmt.Errorf("the export is not whole: it ends with %q\nHint: the server's log says why; run it again", plain(string(last.text)))
	}
	if end.Unsealed > 0 {
		fmt.Fprintf(remarks, "%d rows of the period are not sealed yet and not in the export; end it a minute ago with --until\n", end.Unsealed)
	}
	if end.Dropped > 0 {
		fmt.Fprintf(remarks, "%d rows of these blocks are of months that are not kept any more, and not in the export\n", end.Dropped)
	}
	if end.Rows != nil && *end.Rows == 0 {
		fmt.Fprintf(remarks, "nothing matches %s: the export has no rows\n", c.asked())
	}
	return nil
}

// asked says what an export is of, as it was asked for.
func (c *exportCommand) asked() string {
	said := []string{"--since " + c.Since}
	for _, f := range []struct{ flag, value string }{
		{"until", c.Until}, {"org", c.Org}, {"team", c.Team}, {"key", c.Key}, {"model", c.Model},
	} {
		if f.value != "" {
			said = append(said, "--"+f.flag+" "+f.value)
		}
	}
	return plain(strings.Join(said, " "))
}

// open begins to read an answer that may be long.
func (c *client) open(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.URL, "/")+"/admin/v1"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	// An export may last as long as it likes once it has begun.
	patient := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: checkTimeout, DisableKeepAlives: true,
	}}
	answer, err := patient.Do(request)
	if err != nil {
		return nil, unreachable(c.URL, err)
	}
	if answer.StatusCode < http.StatusBadRequest {
		return answer, nil
	}
	defer func() { _ = answer.Body.Close() }() // what matters was read
	problem := &apiError{}
	if json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(problem) != nil || problem.Detail == "" {
		problem = &apiError{Status: answer.StatusCode, Detail: fmt.Sprintf("%s answered %s", c.URL, answer.Status)}
	}
	return nil, problem
}

// lastLine keeps the last line that was written to it, its first 4 KiB.
type lastLine struct {
	text  []byte
	ended bool
}

const longestTrailer = 4 << 10

func (l *lastLine) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if l.ended {
			l.text, l.ended = l.text[:0], false
		}
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		l.text = append(l.text, line[:min(len(line), longestTrailer-len(l.text))]...)
		l.ended, rest = ended, after
	}
	return len(p), nil
}

// trailer is what is read of the end of an export.
type trailer struct {
	Rows     *int64 `json:"rows"` // nil: it does not say
	Unsealed int64  `json:"unsealed_rows"`
	Dropped  int64  `json:"dropped_rows"`
	SHA256   string `json:"sha256"`
}

// trailer reads the last line. False: it is none.
func (l *lastLine) trailer() (t trailer, ok bool) {
	text, csv := bytes.CutPrefix(l.text, []byte("# trailer "))
	if !csv {
		var line struct {
			Trailer json.RawMessage `json:"trailer"`
		}
		if json.Unmarshal(text, &line) != nil {
			return t, false
		}
		text = line.Trailer
	}
	ok = json.Unmarshal(text, &t) == nil && t.SHA256 != "" && l.ended
	return t, ok
}
