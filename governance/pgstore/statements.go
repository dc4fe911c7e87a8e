package pgstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed sql/*.sql
var statementFiles embed.FS

// statements has every statement by its name. It never changes.
var statements = mustRead(statementFiles)

// statement is one named statement of a file.
type statement struct {
	text   string
	params map[string]bool
}

var (
	header    = regexp.MustCompile(`(?m)^-- (name|part): ([a-z_]+)$`)
	comment   = regexp.MustCompile(`(?m)--.*$`)
	parameter = regexp.MustCompile(`@([a-z_0-9]+)`)
	// insertion is the place of a part in a statement: {narrow r} is the part narrow, whose table x is called r there.
	insertion = regexp.MustCompile(`\{([a-z_]+)(?: ([a-z]+))?\}`)
	partTable = regexp.MustCompile(`\bx\.`)
)

// mustRead panics on a fault, since the files are part of the program.
func mustRead(files fs.FS) map[string]statement {
	names, err := fs.Glob(files, "sql/*.sql")
	if err != nil {
		panic(err)
	}
	texts := map[string]map[string]string{"name": {}, "part": {}}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			panic(err)
		}
		heads := header.FindAllStringSubmatchIndex(string(text), -1)
		for i, h := range heads {
			end := len(text)
			if i+1 < len(heads) {
				end = heads[i+1][0]
			}
			kind, title := string(text[h[2]:h[3]]), string(text[h[4]:h[5]])
			if _, twice := texts[kind][title]; twice {
				panic(kind + " " + title + " stands twice")
			}
			body := strings.TrimSpace(comment.ReplaceAllString(string(text[h[1]:end]), ""))
			texts[kind][title] = strings.TrimSuffix(body, ";")
		}
	}
	all := make(map[string]statement, len(texts["name"]))
	for title, text := range texts["name"] {
		s := statement{text: mustInsert(text, texts["part"]), params: make(map[string]bool)}
		for _, p := range parameter.FindAllStringSubmatch(s.text, -1) {
			s.params[p[1]] = true
		}
		all[title] = s
	}
	return all
}

// mustInsert puts parts where a statement names them. What it names and does not get would be no SQL, so that no filter can
// be lost.
func mustInsert(text string, parts map[string]string) string {
	return insertion.ReplaceAllStringFunc(text, func(place string) string {
		names := insertion.FindStringSubmatch(place)
		part, ok := parts[names[1]]
		if !ok {
			panic("no part " + names[1])
		}
		return partTable.ReplaceAllString(part, names[2]+".")
	})
}

// args are named arguments. A statement takes those that it names; one that it names and does not get is an error.
type args map[string]any

// querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
}

func prepare(name string, a args) (string, pgx.StrictNamedArgs) {
	s, ok := statements[name]
	if !ok {
		panic("no statement " + name)
	}
	named := make(pgx.StrictNamedArgs, len(s.params))
	for p := range s.params {
		if v, ok := a[p]; ok {
			named[p] = v
		}
	}
	return s.text, named
}

// exec runs a statement and returns how many rows it touched.
func exec(ctx context.Context, q querier, name string, a args) (int64, error) {
	text, named := prepare(name, a)
	tag, err := q.Exec(ctx, text, named)
	if err != nil {
		return 0, translate(fmt.Errorf("run %s: %w", name, err))
	}
	return tag.RowsAffected(), nil
}

// many reads rows into structs by the names of their columns.
func many[R any](ctx context.Context, q querier, name string, a args) ([]R, error) {
	return collect(ctx, q, name, a, pgx.RowToStructByName[R])
}

// one reads exactly one row into a struct; ErrNotFound: there is none.
func one[R any](ctx context.Context, q querier, name string, a args) (R, error) {
	return first(many[R](ctx, q, name, a))
}

// scalar reads one value of one row; ErrNotFound: there is none.
func scalar[V any](ctx context.Context, q querier, name string, a args) (V, error) {
	return first(collect(ctx, q, name, a, pgx.RowTo[V]))
}

func collect[R any](ctx context.Context, q querier, name string, a args, to pgx.RowToFunc[R]) ([]R, error) {
	text, named := prepare(name, a)
	rows, err := q.Query(ctx, text, named)
	if err != nil {
		return nil, translate(fmt.Errorf("run %s: %w", name, err))
	}
	all, err := pgx.CollectRows(rows, to)
	if err != nil {
		return nil, translate(fmt.Errorf("run %s: %w", name, err))
	}
	return all, nil
}
