package loadtest

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

const maxReport = 16 << 20 // bytes

// WriteTable writes the report for people: a line for each sample, and under it why it did not pass.
func (r *Report) WriteTable(w io.Writer) error {
	if r.Machine != nil {
		if _, err := fmt.Fprintf(w, "%s\n\n", r.Machine); err != nil {
			return err
		}
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GATEWAYS\tOFFERED\tDONE\tADMITTED\tREFUSED\tLIMITER p50/p95/p99 ms\tHTTP p50/p95/p99 ms\tQUEUE p95\tCPU µs gateway/PostgreSQL\tLOCKS\tVERDICT")
	for i := range r.Samples {
		s := &r.Samples[i]
		fmt.Fprintf(t, "%d\t%s\t%.0f/s\t%d\t%d\t%s\t%s\t%.1f\t%s\t%s\t%s\n", s.Replicas, offered(&s.Sample), s.Completed,
			s.Admitted, s.Refused, triple(s.Limiter), whole(&s.Sample), s.Queue.P95, processor(s.Resources), count(s.LockWaiters), s.Verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Samples {
		s := &r.Samples[i]
		r.explain(&b, i+1, s)
	}
	verdict := "Every sample passed."
	if !r.Pass {
		verdict = "Not every sample passed."
	}
	_, err := fmt.Fprintf(w, "%s\n%s\n", b.String(), verdict)
	return err
}

func (r *Report) explain(b *strings.Builder, number int, s *Judged) {
	line := func(format string, args ...any) {
		fmt.Fprintf(b, "\n%d: ", number)
		fmt.Fprintf(b, format, args...)
	}
	for _, reason := range s.Reasons {
		line("%s", reason)
	}
	for _, text := range s.Errors {
		line("%s", text)
	}
	if s.Stream && s.Admitted > 0 {
		line("first byte p50/p95/p99 ms: %s", triple(&s.FirstByte))
	}
	if used := s.Resources; used != nil {
		line("CPU µs per call: gateways %.0f, PostgreSQL %.0f, mock %.0f, control plane %.0f, load generator %.0f; machine %.0f %% busy, foreign %.1f %%; largest gateway %d MiB",
			used.CPU.Gateways, used.CPU.Postgres, used.CPU.Mock, used.CPU.Control, used.CPU.Load, used.Busy, used.Foreign, used.GatewayRSS>>20)
	}
	for i := range s.Limits {
		l := &s.Limits[i]
		most, least := l.bounds()
		line("%s: %d of %d calls admitted, promised %d … %d", l.Name, l.Admitted, l.Offered, least, most)
	}
	if len(s.NotJudged) > 0 {
		line("not judged: %s", strings.Join(s.NotJudged, ", "))
	}
	b.WriteByte('\n')
}

func offered(s *Sample) string {
	if s.Offered == 0 {
		return fmt.Sprintf("%d conns", s.Connections)
	}
	return fmt.Sprintf("%g/s", s.Offered)
}

// whole is HTTP, if there was any.
func whole(s *Sample) string {
	if s.Admitted == 0 {
		return "-"
	}
	return triple(&s.HTTP)
}

func triple(p *Percentiles) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f/%.1f/%.1f", p.P50, p.P95, p.P99)
}

func processor(r *Resources) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f/%.0f", r.CPU.Gateways, r.CPU.Postgres)
}

func count(n *int) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}
