package console

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// fixedMembers is the key of an operation's metadata under which stand the members that PATCH cannot change.
const fixedMembers = "fixed members"

// updateAttempts is how often an update without If-Match is tried against concurrent ones. Each that fails means that another
// one succeeded, so this many can come at the same time.
const updateAttempts = 32

// Stamps is what every resource carries besides its own members.
type Stamps struct {
	ID        string     `json:"id" doc:"Public id"`
	Version   int64      `json:"version" doc:"Counts changes; the ETag in quotes"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	DeletedAt *time.Time `json:"deleted_at,omitempty" doc:"Deleted resources are kept, since history names them"`
}

func stampsOf(m governance.Meta) Stamps {
	return Stamps{ID: m.ID, Version: m.Version, CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, DeletedAt: instant(m.DeletedAt)}
}

// instant is nil for the zero time.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// PageQuery asks for one page of a list.
type PageQuery struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"250" default:"50" doc:"Items in a page"`
	Cursor string `query:"cursor" doc:"next_cursor of the page before"`
}

func (q PageQuery) page() governance.Page {
	return governance.Page{Limit: q.Limit, Cursor: q.Cursor}
}

// page is one page of a list.
type page[T any] struct {
	Items      []T     `json:"items" nullable:"false"`
	NextCursor *string `json:"next_cursor" doc:"Ask for the next page with it; null: this is the last one"`
}

type pageOutput[T any] struct{ Body page[T] }

func pageOf[Row, View any](rows []Row, next string, view func(Row) View) *pageOutput[View] {
	out := &pageOutput[View]{}
	out.Body.Items = make([]View, 0, len(rows))
	for _, row := range rows {
		out.Body.Items = append(out.Body.Items, view(row))
	}
	if next != "" {
		out.Body.NextCursor = &next
	}
	return out
}

// output is one resource with its ETag.
type output[View any] struct {
	ETag     string `header:"ETag" doc:"Send it as If-Match to refuse a stale write"`
	Location string `header:"Location"`
	Body     View
}

type IDInput struct {
	ID string `path:"id" doc:"Public id"`
}

// Precondition is the precondition of a write.
type Precondition struct {
	IfMatch string `header:"If-Match" doc:"ETag of the version that the write is based on; 412 if there is a newer one"`
}

// version returns the version that the header names. 0: any.
func (h Precondition) version() (int64, error) {
	tag := strings.TrimSpace(h.IfMatch)
	if tag == "" || tag == "*" {
		return 0, nil
	}
	digits, ok := strings.CutPrefix(tag, `"`)
	digits, closed := strings.CutSuffix(digits, `"`)
	version, err := strconv.ParseInt(digits, 10, 64)
	if !ok || !closed || err != nil || version < 1 || strconv.FormatInt(version, 10) != digits {
		return 0, invalid(fault{Location: "header.If-Match", Message: `must be one ETag, such as "3"`})
	}
	return version, nil
}

func stale(what string) *problem {
	return newProblem(http.StatusPreconditionFailed, codePreconditionFailed,
		"The "+what+" has changed since the version that If-Match names. Read it again, then decide.")
}

func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// resource describes one kind of administered row.
type resource[Row, View any] struct {
	path     string // plural, e.g. "organizations"
	singular string // for people
	article  string // "a" or "an"
	kind     ids.Kind
	store    governance.Store[Row]
	meta     func(*Row) *governance.Meta
	view     func(Row) View
}

func (r resource[Row, View]) output(row Row) *output[View] {
	return &output[View]{ETag: etag(r.meta(&row).Version), Body: r.view(row)}
}

func (r resource[Row, View]) created(row Row) *output[View] {
	out := r.output(row)
	out.Location = prefix + "/" + r.path + "/" + r.meta(&row).ID
	return out
}

// operation describes a method of the resource; below is what follows /{id}.
func (r resource[Row, View]) operation(method, below, summary string, errs ...int) huma.Operation {
	path := "/" + r.path + below
	name := strings.ToLower(method) + "-" + r.path + strings.NewReplacer("/{id}", "", "/", "-").Replace(below)
	if below == "" && method == http.MethodGet {
		name = "list-" + r.path
	}
	return operation(method, path, name, r.path, summary, errs...)
}

// operation describes one route. errs are the problems that it has besides those that every route has.
func operation(method, path, name, tag, summary string, errs ...int) huma.Operation {
	op := huma.Operation{
		OperationID: name, Method: method, Path: path, Summary: summary, Tags: []string{tag},
		MaxBodyBytes: maxBody + 1, BodyReadTimeout: -1, // the edge has read and bounded the body
		Responses: make(map[string]*huma.Response),
	}
	everywhere := []int{
		http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusServiceUnavailable,
	}
	for _, status := range append(everywhere, errs...) {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Ref: "#/components/responses/problem"}
	}
	if method == http.MethodPost {
		op.DefaultStatus = http.StatusCreated
	}
	return op
}

// find reads a row. An id of another form is not looked for.
func (r resource[Row, View]) find(ctx context.Context, id string) (Row, error) {
	if !ids.IsPublic(r.kind, id) {
		var none Row
		return none, governance.ErrNotFound
	}
	return r.store.Get(ctx, actorOf(ctx), id)
}

// handle registers an operation whose errors are translated once, here.
func handle[In, Out any](api huma.API, op huma.Operation, what string, do func(context.Context, *In) (*Out, error)) {
	timeout := requestTimeout
	if slow, ok := op.Metadata["slow"].(bool); ok && slow {
		timeout = checkTimeout
	}
	huma.Register(api, op, func(ctx context.Context, in *In) (*Out, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		out, err := do(ctx, in)
		if err != nil {
			return nil, problemOf(ctx, err, what)
		}
		return out, nil
	})
}

// listQuery is the query of a list.
type listQuery interface {
	page() governance.Page
	listFilter() governance.ListFilter
}

func registerList[Row, View any, Query listQuery](api huma.API, r resource[Row, View]) {
	op := r.operation(http.MethodGet, "", "List "+r.path)
	handle(api, op, r.singular, func(ctx context.Context, in *Query) (*pageOutput[View], error) {
		rows, next, err := r.store.List(ctx, actorOf(ctx), (*in).listFilter(), (*in).page())
		if err != nil {
			return nil, err
		}
		return pageOf(rows, next, r.view), nil
	})
}

func registerGet[Row, View any](api huma.API, r resource[Row, View]) {
	op := r.operation(http.MethodGet, "/{id}", "Get "+r.article+" "+r.singular, http.StatusNotFound)
	handle(api, op, r.singular, func(ctx context.Context, in *IDInput) (*output[View], error) {
		row, err := r.find(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return r.output(row), nil
	})
}

// creation is a body that makes a row.
type creation[Row any] interface{ row() (Row, error) }

type bodyInput[Body any] struct{ Body Body }

func registerCreate[Row, View any, Body creation[Row]](api huma.API, r resource[Row, View]) {
	op := r.operation(http.MethodPost, "", "Create "+r.article+" "+r.singular, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	handle(api, op, r.singular, func(ctx context.Context, in *bodyInput[Body]) (*output[View], error) {
		row, err := in.Body.row()
		if err != nil {
			return nil, err
		}
		row, err = r.store.Create(ctx, actorOf(ctx), row)
		if err != nil {
			return nil, referenceMissing(err)
		}
		return r.created(row), nil
	})
}

// referenceMissing is what a write says when a row that it refers to does not exist, or is another organization's.
func referenceMissing(err error) error {
	if errors.Is(err, governance.ErrNotFound) {
		return invalid(fault{Location: "body", Message: "refers to something that does not exist"})
	}
	return err
}

// amendment is a body that changes a row.
type amendment[Row any] interface{ apply(*Row) error }

type patchInput[Body any] struct {
	IDInput
	Precondition
	Body Body
}

// registerUpdate registers PATCH. fixed names members of the view that cannot be changed, so that the refusal can say so.
func registerUpdate[Row, View any, Body amendment[Row]](api huma.API, r resource[Row, View], fixed ...string) {
	op := r.operation(http.MethodPatch, "/{id}", "Change "+r.article+" "+r.singular,
		http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	op.Metadata = map[string]any{fixedMembers: setOf(fixed)}
	handle(api, op, r.singular, func(ctx context.Context, in *patchInput[Body]) (*output[View], error) {
		row, err := r.update(ctx, in.ID, in.Precondition, in.Body.apply)
		if err != nil {
			return nil, err
		}
		return r.output(row), nil
	})
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}

// update applies a change to the newest version, or only to the version that the caller has seen.
func (r resource[Row, View]) update(ctx context.Context, id string, seen Precondition, apply func(*Row) error) (Row, error) {
	var none Row
	want, err := seen.version()
	if err != nil {
		return none, err
	}
	for range updateAttempts {
		row, err := r.find(ctx, id)
		if err != nil {
			return none, err
		}
		if want != 0 && r.meta(&row).Version != want {
			return none, stale(r.singular)
		}
		before := row
		if err := apply(&row); err != nil {
			return none, err
		}
		if reflect.DeepEqual(before, row) {
			return row, nil // a repeat is no change, and nothing for the audit
		}
		row, err = r.store.Update(ctx, actorOf(ctx), row)
		switch {
		case err == nil:
			return row, nil
		case !errors.Is(err, governance.ErrConflict):
			return none, err
		case want != 0:
			return none, stale(r.singular)
		}
	}
	return none, governance.ErrConflict
}

type deleteInput struct {
	IDInput
	Precondition
}

// nothing is an answer without a body.
type nothing struct{}

func registerDelete[Row, View any](api huma.API, r resource[Row, View]) {
	op := r.operation(http.MethodDelete, "/{id}", "Delete "+r.article+" "+r.singular, http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed)
	op.DefaultStatus = http.StatusNoContent
	handle(api, op, r.singular, func(ctx context.Context, in *deleteInput) (*nothing, error) {
		version, err := in.version()
		if err != nil {
			return nil, err
		}
		if !ids.IsPublic(r.kind, in.ID) {
			return nil, governance.ErrNotFound
		}
		err = r.store.Delete(ctx, actorOf(ctx), in.ID, version)
		if errors.Is(err, governance.ErrConflict) {
			return nil, stale(r.singular)
		}
		if err != nil {
			return nil, err
		}
		return &nothing{}, nil
	})
}
