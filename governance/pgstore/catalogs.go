package pgstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/seal"
)

const (
	defaultPoll   = 400 * time.Millisecond
	defaultMaxAge = 5 * time.Second
	// pollTimeout bounds one look at the version, loadTimeout one reading of everything.
	pollTimeout = 2 * time.Second
	loadTimeout = 30 * time.Second
	// listenPing is how long a listening connection may be silent before it is asked whether it lives.
	listenPing = 30 * time.Second
	// rereadAfter is when everything is read anew though nothing was changed, for the statistics of outputs.
	rereadAfter = time.Minute
	// reconnect is the mean wait before a lost connection is replaced.
	reconnect = time.Second
)

// changeKinds are the kinds of rows that caches depend on.
var changeKinds = []string{
	"organization", "team", "user", "membership", "key", "provider", "target", "model", "limit", "price", "guardrail",
}

// CatalogOptions says how a picture of the configuration is kept up to date.
type CatalogOptions struct {
	// Direct is where to listen for notifications: not through a transaction pooler. The zero value: only poll.
	Direct Options
	// Poll is the interval between looks at the version; 0: 400 ms.
	Poll time.Duration
	// MaxAge is for how long a picture may go unconfirmed before it must not be used; 0: 5 s.
	MaxAge time.Duration
	Log    zerolog.Logger
}

// Catalogs keeps the current picture of models, targets, limits, prices and guardrails in memory. It reads everything anew when the
// configuration's version has changed, and when a price, a limit's begin or its end comes due. It learns of changes by
// notification and, where that is lost, by looking at the version in short intervals.
type Catalogs struct {
	pool *pgxpool.Pool
	keys *seal.Keys
	o    CatalogOptions

	state atomic.Pointer[catalogState]
	wake  chan struct{}

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced with each new state
	listeners []func(kind string, num int64)
}

var _ governance.Catalogs = (*Catalogs)(nil)

// catalogState is one picture and when it was last confirmed, by this process's monotonic clock.
type catalogState struct {
	catalog   *governance.Catalog
	confirmed time.Time
	// due is the instant, by the database's clock, at which the picture may change by itself.
	due time.Time
	// limits are those of the picture by number, so that a change reads only what it touched. It is not written to again.
	limits map[int64]*governance.Limit
}

// NewCatalogs makes a picture that is empty until Run has read it. keys opens the credentials of providers.
func NewCatalogs(pool *pgxpool.Pool, keys *seal.Keys, o CatalogOptions) *Catalogs {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.MaxAge <= 0 {
		o.MaxAge = defaultMaxAge
	}
	return &Catalogs{pool: pool, keys: keys, o: o, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Changed registers fn, which is told of each row that a change has touched once the new picture is in force. num 0 means
// all rows of the kind. fn must not block.
func (c *Catalogs) Changed(fn func(kind string, num int64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, fn)
}

// Current returns the newest picture, or ErrStale when it could not be confirmed for longer than its maximum age.
func (c *Catalogs) Current() (*governance.Catalog, error) {
	s := c.state.Load()
	if s == nil || time.Since(s.confirmed) > c.o.MaxAge {
		return nil, governance.ErrStale
	}
	return s.catalog, nil
}

// Refresh waits until the picture is at least as new as version, or ctx ends.
func (c *Catalogs) Refresh(ctx context.Context, version int64) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if s := c.state.Load(); s != nil && s.catalog.Version >= version {
			return nil
		}
		c.nudge()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for configuration %d: %w", version, context.Cause(ctx))
		}
	}
}

// Confirm waits until the picture is known to be no older than this call, so that what it lacks does not exist. All who wait
// at once share one look at the database.
func (c *Catalogs) Confirm(ctx context.Context) error {
	asked := time.Now()
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if s := c.state.Load(); s != nil && s.confirmed.After(asked) {
			return nil
		}
		c.nudge()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("confirm configuration: %w", context.Cause(ctx))
		}
	}
}

// Notice tells of a version that the store is known to have, such as a decision of the ledger names it: a busy process learns
// of changes by its traffic, whatever becomes of notifications.
func (c *Catalogs) Notice(version int64) {
	if s := c.state.Load(); s == nil || s.catalog.Version < version {
		c.nudge()
	}
}

// nudge makes Run look at once.
func (c *Catalogs) nudge() {
	select {
	case c.wake <- struct{}{}:
	default: // it is about to
	}
}

// Run keeps the picture up to date until ctx ends.
func (c *Catalogs) Run(ctx context.Context) error {
	var listening sync.WaitGroup
	if !c.o.Direct.DSN.IsZero() {
		listening.Go(func() { c.listen(ctx) })
	}
	defer listening.Wait()
	failing := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.wake:
		}
		err := c.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failing {
			c.o.Log.Warn().Err(err).Msg("configuration could not be renewed")
		}
		if err == nil && failing {
			c.o.Log.Info().Msg("configuration is current again")
		}
		failing = err != nil
		wait := c.o.Poll
		if failing {
			wait = min(wait, defaultPoll)
		}
		timer.Reset(wait)
	}
}

// look compares versions, and reads everything if the picture is not the newest.
func (c *Catalogs) look(ctx context.Context) error {
	at := time.Now()
	is, err := c.version(ctx)
	if err != nil {
		return err
	}
	s := c.state.Load()
	if s != nil && s.catalog.Version == is.Version && is.Now.Before(s.due) {
		confirmed := *s
		confirmed.confirmed = at
		c.enforce(&confirmed)
		return nil
	}
	return c.load(ctx)
}

// enforce puts a state in force, wakes who waits for one, and returns who asked to be told of changes.
func (c *Catalogs) enforce(s *catalogState) []func(kind string, num int64) {
	c.state.Store(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
	return slices.Clone(c.listeners)
}

type versionRow struct {
	Version int64     `db:"version"`
	Now     time.Time `db:"now"`
}

func (c *Catalogs) version(ctx context.Context) (versionRow, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return read(ctx, c.pool, func(ctx context.Context, q querier) (versionRow, error) {
		return one[versionRow](ctx, q, "config_version", nil)
	})
}

// load reads in one snapshot what may have changed, puts the new picture in force, and then tells who asked to be told.
func (c *Catalogs) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	at := time.Now()
	before := c.state.Load()
	var next *catalogState
	var changes []changeRow
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := within(ctx, c.pool, snapshot, func(ctx context.Context, tx pgx.Tx) error {
		is, err := one[versionRow](ctx, tx, "config_version", nil)
		if err != nil {
			return err
		}
		if before != nil && before.catalog.Version != is.Version {
			if changes, err = changesSince(ctx, tx, before.catalog.Version, is.Version); err != nil {
				return err
			}
		}
		next, err = c.readAll(ctx, tx, is, before, changes)
		return err
	})
	if err != nil {
		return fmt.Errorf("load configuration: %w", err)
	}
	next.confirmed = at
	listeners := c.enforce(next)
	for _, change := range changes {
		for _, tell := range listeners {
			tell(change.Kind, change.Num)
		}
	}
	return nil
}

type changeRow struct {
	Kind string `db:"kind"`
	Num  int64  `db:"num"`
}

// changesSince lists what changed behind version seen. Where the list does not reach back that far, or the database was
// restored to an older state, everything counts as changed.
func changesSince(ctx context.Context, q querier, seen, loaded int64) ([]changeRow, error) {
	oldest, err := scalar[int64](ctx, q, "changes_oldest", nil)
	if err != nil {
		return nil, err
	}
	if loaded < seen || oldest == 0 || oldest > seen+1 {
		all := make([]changeRow, 0, len(changeKinds))
		for _, kind := range changeKinds {
			all = append(all, changeRow{Kind: kind})
		}
		return all, nil
	}
	return many[changeRow](ctx, q, "changes_since", args{"seen": seen, "loaded": loaded})
}

// readAll reads one picture, and the instant at which it may change by itself. Models, targets, their prices and
// guardrails are read anew each time; limits may be many, so that those which no change has touched are taken over.
func (c *Catalogs) readAll(ctx context.Context, q querier, is versionRow, before *catalogState, changes []changeRow) (*catalogState, error) {
	everything := filter(governance.Actor{})
	everything["count"] = (*int64)(nil)
	targetRows, err := many[targetsRow](ctx, q, "targets_read", everything)
	if err != nil {
		return nil, err
	}
	modelRows, err := many[modelsRow](ctx, q, "models_read", everything)
	if err != nil {
		return nil, err
	}
	priceRows, err := many[pricesRow](ctx, q, "prices_in_force", args{"targets": []int64(nil)})
	if err != nil {
		return nil, err
	}
	limits, err := readLimits(ctx, q, is.Now, before, changes)
	if err != nil {
		return nil, err
	}
	guardrails, err := c.readGuardrails(ctx, q)
	if err != nil {
		return nil, err
	}
	due, err := scalar[*time.Time](ctx, q, "config_due", nil)
	if err != nil {
		return nil, err
	}
	again := is.Now.Add(rereadAfter)
	if before != nil && is.Now.Before(before.due) {
		again = before.due // limits were not all read
	}
	if due == nil || again.Before(*due) {
		due = &again
	}
	models := make([]*governance.Model, 0, len(modelRows))
	for _, r := range modelRows {
		m := r.domain()
		models = append(models, &m)
	}
	catalog := governance.NewCatalog(is.Version, is.Now.UTC(), models, c.targets(targetRows, priceRows),
		slices.Collect(maps.Values(limits)))
	catalog.Guardrails = guardrails
	return &catalogState{catalog: catalog, due: *due, limits: limits}, nil
}

// readLimits reads the limits that changes name, or all where these are not known or an instant has come.
func readLimits(ctx context.Context, q querier, now time.Time, before *catalogState, changes []changeRow) (map[int64]*governance.Limit, error) {
	var touched []int64 // nil: all
	limits := make(map[int64]*governance.Limit)
	all := slices.Contains(changes, changeRow{Kind: "limit"})
	if before != nil && now.Before(before.due) && !all {
		touched = []int64{}
		limits = maps.Clone(before.limits)
		for _, change := range changes {
			if change.Kind == "limit" {
				touched = append(touched, change.Num)
				delete(limits, change.Num)
			}
		}
	}
	rows, err := many[limitsRow](ctx, q, "limits_in_force", args{"nums": touched})
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		l := r.domain()
		limits[l.Num] = &l
	}
	return limits, nil
}

// targets joins targets with their prices and opened credentials. A target whose credential does not open is left out: to
// send a request without it, or elsewhere than it is for, would be worse.
func (c *Catalogs) targets(rows []targetsRow, priceRows []pricesRow) []*governance.Target {
	prices := priceIndex(priceRows)
	targets := make([]*governance.Target, 0, len(rows))
	for _, r := range rows {
		t := r.domain()
		credential, err := sealed{r.Sealed, r.OrganizationID, r.ProviderID, r.BaseURL}.open(c.keys)
		if err != nil {
			c.o.Log.Error().Err(err).Str(lognames.Target, t.ID).Msg("target left out")
			continue
		}
		t.Credential = credential
		t.Price = prices[r.priceKey()]
		targets = append(targets, &t)
	}
	return targets
}

// listen waits for notifications and nudges Run, on a connection of its own that it replaces when it is lost.
func (c *Catalogs) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		c.o.Log.Debug().Err(err).Msg("listening connection lost")
		c.nudge() // what was told meanwhile was missed
		select {
		case <-ctx.Done():
		case <-time.After(reconnect/2 + rand.N(reconnect)): //nolint:gosec // jitter
		}
	}
}

func (c *Catalogs) listenOnce(ctx context.Context) error {
	conn, err := c.o.Direct.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it is lost or no longer needed
	if _, err := exec(ctx, conn, "config_listen", nil); err != nil {
		return err
	}
	c.nudge()
	for {
		wait, cancel := context.WithTimeout(ctx, listenPing)
		_, err := conn.WaitForNotification(wait)
		silent := errors.Is(wait.Err(), context.DeadlineExceeded)
		cancel()
		switch {
		case err == nil:
			c.nudge()
		case ctx.Err() != nil || !silent || conn.IsClosed():
			return translate(err)
		default:
			if err := conn.Ping(ctx); err != nil {
				return translate(err)
			}
		}
	}
}
