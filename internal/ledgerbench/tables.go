package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

func (b *bench) designs(ctx context.Context) error {
	fmt.Printf("Pairs of an admission and a durable settlement a second; four meters that all requests share\n\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "design\t1 process\t2\t4\tWAL bytes a pair\tmeter versions a pair\tundecided\t")
	four := make(map[string]float64)
	for _, design := range []string{perStep, pipelined, perCall, coalesced} {
		fmt.Fprintf(t, "%s\t", design)
		var last outcome
		for _, processes := range []int{1, 2, 4} {
			o, err := b.run(ctx, scenario{design: design, processes: processes, meters: 4, subjects: 1})
			if err != nil {
				return err
			}
			fmt.Fprintf(t, "%.0f\t", o.perSecond())
			last = o
		}
		four[design] = last.perSecond()
		fmt.Fprintf(t, "%.0f\t%.2f\t%d\t\n", float64(last.wal)/float64(last.Pairs), float64(last.versions)/float64(last.Pairs), last.Undecided)
	}
	_ = t.Flush()
	fmt.Printf("\nCoalesced through four processes: %.0f times the three pipelined statements.\n\n", four[coalesced]/four[pipelined])
	return nil
}

func (b *bench) meters(ctx context.Context) error {
	fmt.Printf("Coalesced, four processes, meters that all requests share\n\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "meters\tpairs/s\tWAL bytes a pair\t")
	for _, meters := range []int{2, 3, 4, 6} {
		o, err := b.run(ctx, scenario{design: coalesced, processes: 4, meters: meters, subjects: 1})
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%d\t%.0f\t%.0f\t\n", meters, o.perSecond(), float64(o.wal)/float64(o.Pairs))
	}
	_ = t.Flush()
	fmt.Println()
	return nil
}

func (b *bench) tenants(ctx context.Context) error {
	fmt.Printf("Coalesced, four processes, four meters for each of 1,000 tenants\n\n")
	o, err := b.run(ctx, scenario{design: coalesced, processes: 4, meters: 4, subjects: 1000})
	if err != nil {
		return err
	}
	fmt.Printf("%.0f pairs/s, %.0f bytes of WAL and %.2f meter versions a pair, %d dead rows at the end, %d undecided\n\n",
		o.perSecond(), float64(o.wal)/float64(o.Pairs), float64(o.versions)/float64(o.Pairs), o.dead, o.Undecided)
	return nil
}

func (b *bench) refusals(ctx context.Context) error {
	fmt.Printf("Refusals: four processes, four meters, the last without any room\n\n")
	o, err := b.run(ctx, scenario{design: coalesced, processes: 4, meters: 4, subjects: 1, refuse: true})
	if err != nil {
		return err
	}
	fmt.Printf("%.0f refusals/s, %.0f bytes of WAL each, %d admitted, %d undecided\n\n", o.perSecond(), float64(o.wal)/float64(o.Refused), o.Pairs, o.Undecided)
	return nil
}

func (b *bench) latencies(ctx context.Context) error {
	fmt.Printf("Admissions that come whatever happens, over four processes; milliseconds from the moment they were due\n\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "design\toffered/s\tanswered/s\tp50\tp95\tp99\tundecided\t")
	for _, s := range []scenario{
		{design: perStep, rate: 500},
		{design: pipelined, rate: 500},
		{design: perCall, rate: 500},
		{design: coalesced, rate: 500},
		{design: coalesced, rate: 1000},
		{design: coalesced, rate: 5000},
		{design: coalesced, rate: 5000, subjects: 1000},
	} {
		s.processes, s.meters, s.subjects = 4, 4, max(s.subjects, 1)
		o, err := b.run(ctx, s)
		if err != nil {
			return err
		}
		name := s.design
		if s.subjects > 1 {
			name += ", 1,000 tenants"
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%s\t%s\t%s\t%d\t\n", name, s.rate, o.perSecond(), millis(o.percentile(50)), millis(o.percentile(95)),
			millis(o.percentile(99)), o.Undecided)
	}
	_ = t.Flush()
	fmt.Println()
	return nil
}

func millis(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) }

// lone compares a single client with empty durable transactions on the same server.
func (b *bench) lone(ctx context.Context) error {
	name, limits, err := b.database(ctx, scenario{meters: 4, subjects: 1})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, b.cluster.DSN("postgres", name))
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer pool.Close()
	l := ledger.New(ledger.Options{Pool: pool, Node: "bench"})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	p := product{l, limits}
	var reserve, settle, empty []time.Duration
	for end := time.Now().Add(b.each); time.Now().Before(end); {
		begin := time.Now()
		id, err := p.reserve(ctx, 1)
		if err != nil {
			return fmt.Errorf("reserve alone: %w", err)
		}
		reserve = append(reserve, time.Since(begin))
		begin = time.Now()
		if err := p.settle(ctx, id, 1); err != nil {
			return fmt.Errorf("settle alone: %w", err)
		}
		settle = append(settle, time.Since(begin))
		begin = time.Now()
		if _, err := pool.Exec(ctx, "SELECT pg_logical_emit_message(true, 'bench', '')"); err != nil {
			return fmt.Errorf("commit nothing: %w", err)
		}
		empty = append(empty, time.Since(begin))
	}
	if err := errors.Join(l.Close(ctx), <-ended); err != nil {
		return err
	}
	r, s, e := median(reserve), median(settle), median(empty)
	fmt.Printf("Alone, four meters, medians: admission %s ms, settlement %s ms, an empty durable transaction %s ms: %.1f and %.1f times\n",
		millis(r), millis(s), millis(e), float64(r)/float64(e), float64(s)/float64(e))
	return nil
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
