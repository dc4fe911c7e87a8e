package console

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
)

// exportPatience is how long a client may take to read one page of an export.
const exportPatience = time.Minute

type exportInput struct {
	SpendQuery
	Format string `query:"format" enum:"csv,jsonl" default:"csv" doc:"csv, or a JSON object a line"`
}

// trailer ends an export that is whole. One without it is not.
type trailer struct {
	Rows      int64      `json:"rows"`
	CostUSD   string     `json:"cost_usd"`
	From      *time.Time `json:"from"`
	To        *time.Time `json:"to"`
	Unsealed  int64      `json:"unsealed_rows"` // of the period, and not in the export
	Dropped   int64      `json:"dropped_rows"`  // of these blocks, whatever the filter, and not in the export: their month is not kept
	Block     int64      `json:"block"`
	BlockHash string     `json:"block_hash"`
	SHA256    string     `json:"sha256"` // of all bytes before the trailer
}

// exportForm writes an export.
type exportForm interface {
	rows(page []governance.SpendRow) error
	end(t trailer) error
	// fail marks an export that is not whole.
	fail(detail string) error
}

func (s *server) registerExport(api huma.API) {
	if s.Exports == nil {
		return
	}
	op := operation(http.MethodGet, "/spend/export", "export-spend", "spend", "Stream all sealed ledger rows of a period")
	op.Responses["200"] = &huma.Response{
		Description: "Rows in the order in which they were sealed, then a trailer. Without a trailer it is not whole.",
		Content:     map[string]*huma.MediaType{"text/csv": {}, "application/x-ndjson": {}},
	}
	huma.Register(api, op, func(ctx context.Context, in *exportInput) (*huma.StreamResponse, error) {
		f, err := in.filter()
		if err != nil {
			return nil, problemOf(ctx, err, "export")
		}
		return &huma.StreamResponse{Body: func(c huma.Context) { s.export(c, f, in.Format) }}, nil
	})
}

// export streams. A failure before the first byte is an ordinary problem.
func (s *server) export(c huma.Context, f governance.SpendFilter, format string) {
	r, w := humago.Unwrap(c)
	control := http.NewResponseController(w)
	sum := sha256.New()
	var form exportForm
	begin := func() error {
		if form != nil {
			return nil
		}
		out := io.MultiWriter(w, sum)
		if format == "jsonl" {
			w.Header().Set("Content-Type", "application/x-ndjson")
			form = &lines{json.NewEncoder(out)}
			return nil
		}
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		w.Header().Set("Content-Disposition", `attachment; filename="tollgate-spend.csv"`)
		table := &table{csv.NewWriter(out), out}
		form = table
		return table.head()
	}
	done, err := s.Exports.Export(r.Context(), f, func(page []governance.SpendRow) error {
		err := control.SetWriteDeadline(time.Now().Add(exportPatience))
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("set write deadline: %w", err)
		}
		if err := begin(); err != nil {
			return err
		}
		if err := form.rows(page); err != nil {
			return err
		}
		return control.Flush()
	})
	if err != nil {
		err = problemOf(r.Context(), err, "export") // which logs it
		if p, ok := errors.AsType[*problem](err); ok && form == nil {
			writeProblem(w, r, p)
			return
		}
		err = form.fail(err.Error())
	} else if err = begin(); err == nil {
		err = form.end(trailerOf(done, f, sum))
	}
	if err != nil { // a client that is gone cannot be told
		zerolog.Ctx(r.Context()).Debug().Err(err).Msg("export not written to its end")
	}
}

func trailerOf(done governance.Exported, f governance.SpendFilter, sum hash.Hash) trailer {
	t := trailer{
		Rows: done.Rows, CostUSD: done.Cost.String(), Unsealed: done.Unsealed, Dropped: done.Dropped,
		Block: done.Block.Number, BlockHash: hex.EncodeToString(done.Block.Hash), SHA256: hex.EncodeToString(sum.Sum(nil)),
	}
	for at, to := range map[*time.Time]**time.Time{&f.From: &t.From, &f.To: &t.To} {
		if !at.IsZero() {
			*to = at
		}
	}
	return t
}

// lines is JSON, an object a line.
type lines struct{ out *json.Encoder }

func (l *lines) rows(page []governance.SpendRow) error {
	for i := range page {
		if err := l.out.Encode(viewSpendRow(page[i])); err != nil {
			return fmt.Errorf("write row: %w", err)
		}
	}
	return nil
}

func (l *lines) end(t trailer) error {
	return l.out.Encode(map[string]trailer{"trailer": t})
}

func (l *lines) fail(detail string) error {
	return l.out.Encode(map[string]string{"error": detail})
}

// table is CSV with a column for each unit.
type table struct {
	csv *csv.Writer
	out io.Writer
}

func (t *table) head() error {
	head := []string{
		"id", "settled_at", "admitted_at", "request_id", "attempt", "kind", "outcome", "usage_source",
		"organization_id", "organization", "team_id", "team", "key_id", "key", "user_id", "user", "end_user",
		"route", "model", "provider", "upstream_model", "price_version", "cost_usd", "corrects", "actor", "reason", "tags",
	}
	for u := range governance.UnitCount {
		head = append(head, u.String())
	}
	if err := t.csv.Write(head); err != nil {
		return fmt.Errorf("write head: %w", err)
	}
	t.csv.Flush() // of an export without rows the checksum is of the head
	return t.csv.Error()
}

func (t *table) rows(page []governance.SpendRow) error {
	for i := range page {
		r := &page[i]
		tags, err := json.Marshal(r.Tags)
		if err != nil {
			return fmt.Errorf("write tags of %s: %w", r.ID(), err)
		}
		o := &r.Origin
		cells := []string{
			r.ID(), r.SettledAt.UTC().Format(time.RFC3339Nano), r.AdmittedAt.UTC().Format(time.RFC3339Nano), o.RequestID.String(),
			strconv.Itoa(o.Attempt), string(r.Kind), string(r.Outcome), string(r.Source),
			o.Organization.ID, harmless(o.Organization.Name), o.Team.ID, harmless(o.Team.Name), o.Key.ID, harmless(o.Key.Name),
			o.User.ID, harmless(o.User.Name), harmless(r.EndUser), harmless(o.Route), harmless(o.Model), harmless(o.Provider),
			harmless(o.UpstreamModel), r.PriceID, r.Cost.String(), r.Corrects, harmless(r.Actor), harmless(r.Reason), harmless(string(tags)),
		}
		for _, n := range r.Quantities {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		if err := t.csv.Write(cells); err != nil {
			return fmt.Errorf("write row: %w", err)
		}
	}
	t.csv.Flush()
	return t.csv.Error()
}

func (t *table) end(e trailer) error {
	t.csv.Flush()
	text, err := json.Marshal(e)
	if err == nil {
		_, err = fmt.Fprintf(t.out, "# trailer %s\n", text)
	}
	return err
}

func (t *table) fail(detail string) error {
	t.csv.Flush()
	_, err := fmt.Fprintf(t.out, "# FAILED, this export is not whole: %s\n", strings.ReplaceAll(detail, "\n", " "))
	return err
}

// harmless keeps a spreadsheet from taking text for a formula.
func harmless(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
