// Package audit keeps what clients said about their requests beside the ledger: tags, metadata, and the usage object as the
// provider sent it. It shares no row and no transaction with money, and loses rather than delays (ruling 14).
package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "audit"

const (
	batch        = 256
	linger       = 100 * time.Millisecond // how long the first attempt of a batch waits for others: a write each would cost the store as much as the call
	writeTimeout = 5 * time.Second
	firstPause   = 100 * time.Millisecond // between tries, doubled each time
	longestPause = 4 * time.Second
)

// Settings is the plugin's section of the configuration.
type Settings struct {
	Queue int `yaml:"queue"` // attempts that may wait to be written, default 4,096; what does not fit is counted and dropped
}

// Module is what the application's list of plugins names.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(env plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		s := Settings{Queue: 4 << 10}
		if err := cfg.Decode(&s); err != nil {
			return nil, fmt.Errorf("decode settings of audit: %w", err)
		}
		if s.Queue < 1 || s.Queue > 1<<20 {
			return nil, errors.New("check settings of audit: queue must be between 1 and 1,048,576")
		}
		return &plugin{
			env: env, queue: make(chan governance.Attribution, s.Queue),
			lost: env.Metrics.Counter("tollgate_attributions_lost_total", "Attributions that were not kept, by reason.", "reason"),
		}, nil
	}}
}

type plugin struct {
	env   plugins.Env
	queue chan governance.Attribution
	lost  func(values ...string)
}

var (
	_ plugins.Recorder = (*plugin)(nil)
	_ plugins.Runner   = (*plugin)(nil)
)

// ID implements plugins.Plugin.
func (*plugin) ID() string { return ID }

// Record implements plugins.Recorder. It never waits. Attempts that left no row in the ledger leave none here.
func (p *plugin) Record(_ context.Context, r plugins.Record) {
	for i := range r.Attempts {
		a := &r.Attempts[i]
		if a.Settlement.Release || len(r.Call.Tags) == 0 && len(r.Call.Metadata) == 0 && len(a.RawUsage) == 0 {
			continue
		}
		row := governance.Attribution{
			AttemptID: a.ID, RequestID: r.Call.ID, Tags: r.Call.Tags, Metadata: r.Call.Metadata, RawUsage: a.RawUsage,
		}
		select {
		case p.queue <- row:
		default:
			p.lost("queue_full")
		}
	}
}

// Run implements plugins.Runner: it writes what is queued in batches, and at the end what is left.
func (p *plugin) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
		case first := <-p.queue:
			wait(ctx, linger)
			p.write(ctx, p.gather(first))
		}
		for len(p.queue) >= batch || ctx.Err() != nil && len(p.queue) > 0 {
			p.write(ctx, p.gather(<-p.queue))
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
	}
}

// gather takes what is queued besides first, up to a batch.
func (p *plugin) gather(first governance.Attribution) []governance.Attribution {
	rows := append(make([]governance.Attribution, 0, min(1+len(p.queue), batch)), first)
	for len(rows) < batch {
		select {
		case row := <-p.queue:
			rows = append(rows, row)
		default:
			return rows
		}
	}
	return rows
}

// write keeps rows. Where the store is away it tries again for some seconds, but not once ctx has ended; meanwhile the queue
// bounds what waits.
func (p *plugin) write(ctx context.Context, rows []governance.Attribution) {
	err := p.attribute(ctx, rows)
	for pause := firstPause; errors.Is(err, governance.ErrStoreAway) && pause <= longestPause && wait(ctx, pause); pause *= 2 {
		err = p.attribute(ctx, rows)
	}
	if err == nil {
		return
	}
	for range rows {
		p.lost("store")
	}
	p.env.Log.Warn().Err(err).Int(lognames.Count, len(rows)).Msg("attributions could not be kept")
}

// wait reports whether d has passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (p *plugin) attribute(ctx context.Context, rows []governance.Attribution) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return p.env.Spend.Attribute(ctx, rows)
}
