package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	// acquireTimeout bounds the wait for a connection of the pool.
	acquireTimeout = 3 * time.Second
	// operationTimeout bounds one call of a store, so that none outlives the patience of its caller.
	operationTimeout = 15 * time.Second
	// notedAtMost is how many changed rows of one resource are listed by number; above it the list says "all of them".
	notedAtMost = 100
)

// change is one transaction that changes what admins manage.
type change struct {
	tx      pgx.Tx
	by      governance.Actor
	version int64 // the configuration version that the change makes
	notes   []note
}

// note is one changed row.
type note struct {
	action, resource, id string
	num, organization    int64
	before, after        any // rows, or nil
}

func (c *change) note(n note) { c.notes = append(c.notes, n) }

// write runs one change. It raises the configuration version first: the lock of that row makes changes wait for each
// other, so what do reads stays true until the commit.
func write(ctx context.Context, pool *pgxpool.Pool, by governance.Actor, do func(context.Context, *change) error) error {
	return within(ctx, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		version, err := scalar[int64](ctx, tx, "config_raise", nil)
		if err != nil {
			return err
		}
		c := &change{tx: tx, by: by, version: version}
		if err := do(ctx, c); err != nil {
			return err
		}
		return c.record(ctx)
	})
}

// within runs do in one transaction on a connection that it waits for at most acquireTimeout.
func within(ctx context.Context, pool *pgxpool.Pool, o pgx.TxOptions, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	begun := false
	_, err := onConnection(ctx, pool, func(conn *pgxpool.Conn) (struct{}, error) {
		return struct{}{}, translate(pgx.BeginTxFunc(ctx, conn, o, func(tx pgx.Tx) error {
			begun = true
			return do(ctx, tx)
		}))
	}, func() bool { return !begun })
	return err
}

func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if refusesParameter(err) { // now the pool knows what to leave out
		conn, err = pool.Acquire(ctx)
	}
	if err != nil {
		return nil, translate(fmt.Errorf("acquire connection: %w", err))
	}
	return conn, nil
}

// read runs do on a connection of the pool. do may run twice, so what it writes, if anything, must bear that.
func read[V any](ctx context.Context, pool *pgxpool.Pool, do func(context.Context, querier) (V, error)) (V, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	return onConnection(ctx, pool, func(conn *pgxpool.Conn) (V, error) { return do(ctx, conn) }, func() bool { return true })
}

// onConnection runs do on a connection of the pool. One that turns out to have been cut is replaced once, if do may be
// repeated: idle connections do not notice the end of their server.
func onConnection[V any](ctx context.Context, pool *pgxpool.Pool, do func(*pgxpool.Conn) (V, error), repeatable func() bool) (V, error) {
	var v V
	conn, err := acquire(ctx, pool)
	if err != nil {
		return v, err
	}
	v, err = do(conn)
	conn.Release()
	if !wasCut(err) || !repeatable() {
		return v, err
	}
	pool.Reset() // what cut one connection has mostly cut the idle ones too
	if conn, err = acquire(ctx, pool); err != nil {
		return v, err
	}
	defer conn.Release()
	return do(conn)
}

// record writes audit rows, changed rows and the notification of a change.
func (c *change) record(ctx context.Context) error {
	var actions, resources, ids []string
	var organizations []int64
	var befores, afters []*string
	changed := make(map[string][]int64)
	for _, n := range c.notes {
		before, err := encode(n.before)
		if err != nil {
			return err
		}
		after, err := encode(n.after)
		if err != nil {
			return err
		}
		actions, resources, ids = append(actions, n.action), append(resources, n.resource), append(ids, n.id)
		organizations = append(organizations, n.organization)
		befores, afters = append(befores, before), append(afters, after)
		kind := kindOf(n.resource)
		changed[kind] = append(changed[kind], n.num)
	}
	var kinds []string
	var nums []int64
	for kind, rows := range changed {
		if len(rows) > notedAtMost {
			rows = []int64{0}
		}
		slices.Sort(rows)
		for _, num := range slices.Compact(rows) {
			kinds, nums = append(kinds, kind), append(nums, num)
		}
	}
	_, err := exec(ctx, c.tx, "changes_record", args{
		"version": c.version, "kinds": kinds, "nums": nums,
		"actor_kind": c.by.Kind, "actor_id": c.by.ID, "actor_name": c.by.Name, "ip": c.by.IP,
		"request_id": c.by.RequestID, "reason": c.by.Reason,
		"actions": actions, "resources": resources, "ids": ids, "organizations": organizations,
		"befores": befores, "afters": afters,
	})
	return err
}

// kindOf names one row of a resource: "keys" are many of "key".
func kindOf(resource string) string { return strings.TrimSuffix(resource, "s") }

// encode writes a row for the audit: its columns without row numbers and without what is tagged as secret.
func encode(row any) (*string, error) {
	if row == nil {
		return nil, nil
	}
	columns := make(map[string]any)
	collectColumns(reflect.ValueOf(row), columns)
	text, err := json.Marshal(columns)
	if err != nil {
		return nil, fmt.Errorf("encode audit image: %w", err)
	}
	image := string(text)
	return &image, nil
}

func collectColumns(row reflect.Value, into map[string]any) {
	for i := range row.NumField() {
		field := row.Type().Field(i)
		name := field.Tag.Get("db")
		switch {
		case field.Anonymous:
			collectColumns(row.Field(i), into)
		case name == "num" || strings.HasSuffix(name, "_num") || field.Tag.Get("audit") == "-":
		default:
			into[name] = row.Field(i).Interface()
		}
	}
}
