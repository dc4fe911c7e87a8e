package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

// job is what one process does: its design against its limits, for a while that begins at the same moment in all.
type job struct {
	DSN      string              `json:"dsn"`
	Design   string              `json:"design"`
	Limits   []*governance.Limit `json:"limits"`
	Subjects int64               `json:"subjects"`
	Clients  int                 `json:"clients"`        // closed loop: how many go on as soon as they are answered
	Rate     float64             `json:"rate,omitempty"` // open loop: attempts a second that come whatever happens
	Begin    time.Time           `json:"begin"`
	Time     time.Duration       `json:"time"`
}

// result is what came of a job.
type result struct {
	Pairs     int64   `json:"pairs"`     // admitted and settled
	Refused   int64   `json:"refused"`   // by a limit
	Undecided int64   `json:"undecided"` // overloaded, or no answer in time
	Latencies []int64 `json:"latencies"` // of admissions in microseconds, from the moment they were due; a sample
	Fault     string  `json:"fault,omitempty"`
}

// Bounds of a worker.
const (
	maxSamples   = 50_000
	maxInFlight  = 20_000
	warmUp       = 500 * time.Millisecond
	settleWithin = 10 * time.Second
)

// work does a job.
func work(ctx context.Context, j job) (result, error) {
	config, err := pgxpool.ParseConfig(j.DSN)
	if err != nil {
		return result{}, fmt.Errorf("parse DSN: %w", err)
	}
	config.MaxConns = 18
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return result{}, fmt.Errorf("open pool: %w", err)
	}
	defer pool.Close()
	books, stop, err := open(ctx, pool, j)
	if err != nil {
		return result{}, err
	}
	w := &worker{job: j, books: books, every: 1}
	select {
	case <-time.After(time.Until(j.Begin)):
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
	if j.Rate > 0 {
		w.open(ctx)
	} else {
		w.closed(ctx)
	}
	if err := stop(); err != nil {
		return result{}, err
	}
	return w.result, nil
}

// open makes what a design needs: one book that all clients share, or one for each connection.
func open(ctx context.Context, pool *pgxpool.Pool, j job) (books []book, stop func() error, err error) {
	switch j.Design {
	case perStep:
		return []book{steps{pool, numbers(j.Limits)}}, func() error { return nil }, nil
	case pipelined:
		return []book{pipeline{pool, numbers(j.Limits)}}, func() error { return nil }, nil
	}
	lanes := 1
	if j.Design == perCall {
		lanes = 16 // one request at a time each, so that every batch has one item
	}
	running, ended := make(chan error, lanes), []*ledger.Ledger{}
	for range lanes {
		l := ledger.New(ledger.Options{Pool: pool, Node: "bench"})
		go func() { running <- l.Run(ctx) }()
		books = append(books, product{l, j.Limits})
		ended = append(ended, l)
	}
	return books, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
		defer cancel()
		var faults []error
		for _, l := range ended {
			faults = append(faults, l.Close(ctx), <-running)
		}
		return errors.Join(faults...)
	}, nil
}

type worker struct {
	job
	books []book

	mu     sync.Mutex
	result result
	seen   int64
	every  int64 // of the latencies one is kept
	next   atomic.Int64
}

// attempt does one pair, or what becomes of it, for an attempt that was due at a moment.
func (w *worker) attempt(ctx context.Context, b book, due time.Time) {
	subject := 1 + w.next.Add(1)%w.Subjects
	id, err := b.reserve(ctx, subject)
	took := time.Since(due)
	if err == nil {
		err = b.settle(ctx, id, subject)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.result.Pairs++
	case errors.Is(err, errRefused):
		w.result.Refused++
	case errors.Is(err, governance.ErrOverloaded), errors.Is(err, governance.ErrLimitStoreUnavailable):
		w.result.Undecided++
	default:
		w.result.Fault = err.Error()
	}
	if due.Sub(w.Begin) < warmUp {
		return
	}
	w.seen++
	if w.seen%w.every == 0 {
		w.result.Latencies = append(w.result.Latencies, took.Microseconds())
	}
	if len(w.result.Latencies) == maxSamples { // keep every other one, and from here on half as many
		half := w.result.Latencies[:0]
		for i := 0; i < maxSamples; i += 2 {
			half = append(half, w.result.Latencies[i])
		}
		w.result.Latencies, w.every = half, 2*w.every
	}
}

// closed lets each client go on as soon as it is answered.
func (w *worker) closed(ctx context.Context) {
	end := w.Begin.Add(w.Time)
	var group sync.WaitGroup
	clients := w.Clients
	if w.Design == perCall {
		clients = min(clients, len(w.books))
	}
	for i := range clients {
		b := w.books[i%len(w.books)]
		group.Go(func() {
			for now := time.Now(); now.Before(end) && ctx.Err() == nil; now = time.Now() {
				w.attempt(ctx, b, now)
			}
		})
	}
	group.Wait()
}

// open starts attempts when they are due. What does not fit is undecided.
func (w *worker) open(ctx context.Context) {
	interval := time.Duration(float64(time.Second) / w.Rate)
	var group sync.WaitGroup
	room := make(chan struct{}, maxInFlight)
	free := make(chan book, len(w.books))
	for _, b := range w.books {
		free <- b
	}
	for n := range int64(w.Time / interval) {
		due := w.Begin.Add(time.Duration(n) * interval)
		if wait := time.Until(due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
		select {
		case room <- struct{}{}:
		default:
			w.mu.Lock()
			w.result.Undecided++
			w.mu.Unlock()
			continue
		}
		group.Go(func() {
			defer func() { <-room }()
			b := w.books[0]
			if len(w.books) > 1 {
				b = <-free
				defer func() { free <- b }()
			}
			if time.Since(w.Begin) > w.Time+settleWithin {
				w.mu.Lock()
				w.result.Undecided++ // nobody waits that long
				w.mu.Unlock()
				return
			}
			w.attempt(ctx, b, due)
		})
	}
	group.Wait()
}
