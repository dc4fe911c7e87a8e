package loadtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Faults of a report that is not one.
var (
	errTrailing  = errors.New("more follows after the report")
	errNoSamples = errors.New("report has no samples")
)

// ReadReport reads a report as it was printed in JSON, and judges its samples anew. Every member of a sample must be there, and
// all of them must be possible together: what was not measured cannot be passed, nor what was never seen.
func ReadReport(r io.Reader) (*Report, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxReport))
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var report Report
	if err := decoder.Decode(&report); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read report: %w", errTrailing)
	}
	if len(report.Samples) == 0 {
		return nil, fmt.Errorf("read report: %w", errNoSamples)
	}
	var told struct {
		Samples []any `json:"samples"`
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	for i := range report.Samples {
		s := &report.Samples[i]
		fault := incomplete(told.Samples[i], reflect.TypeFor[Sample](), "")
		if fault == "" {
			fault = s.impossible()
		}
		if fault != "" {
			return nil, fmt.Errorf("read report: sample %d: %s", i+1, fault) //nolint:err113 // for who wrote it
		}
		s.Judgement = Judge(&s.Sample)
	}
	report.Pass = pass(report.Samples)
	return &report, nil
}

// incomplete names the first member that a value lacks, or that is below zero; empty: there is none. The value was decoded as a
// T before.
func incomplete(value any, t reflect.Type, at string) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := value.(type) {
	case float64:
		if v < 0 {
			return fmt.Sprintf("%s is %v", at, v)
		}
	case []any:
		for i := range v {
			if fault := incomplete(v[i], t.Elem(), fmt.Sprintf("%s[%d]", at, i)); fault != "" {
				return fault
			}
		}
	case map[string]any:
		for _, field := range reflect.VisibleFields(t) {
			name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
			path := strings.TrimPrefix(at+"."+name, ".")
			member, there := v[name]
			if !there && option == "" {
				return "there is no " + path
			}
			if fault := incomplete(member, field.Type, path); fault != "" {
				return fault
			}
		}
	}
	return ""
}

// impossible says what of a sample cannot have been measured; empty: nothing.
func (s *Sample) impossible() string {
	times := []*Percentiles{&s.Scheduling, &s.Queue, &s.HTTP, &s.FirstByte, s.Limiter, s.Refusals}
	for i, name := range []string{"scheduling_ms", "queue_ms", "http_ms", "first_byte_ms", "limiter_ms", "refusals_ms"} {
		if p := times[i]; p != nil && !slices.IsSorted([]float64{p.P50, p.P95, p.P99, p.Max}) {
			return name + " does not ascend from p50 to max"
		}
	}
	const slip = 1.01 // of figures that were rounded
	outcomes := float64(s.Admitted + s.Refused + s.ServerErrors + s.Unexpected)
	// The limiter's time is a part of HTTP, call by call.
	within := s.Limiter == nil || s.Limiter.P50 <= s.HTTP.P50*slip && s.Limiter.P95 <= s.HTTP.P95*slip && s.Limiter.Max <= s.HTTP.Max*slip
	switch {
	case !within:
		return "limiter_ms is above http_ms"
	case s.Admitted > 0 && s.HTTP.P50 == 0:
		return "http_ms is nothing"
	case s.Offered == 0 && s.Connections == 0:
		return "offered_rps and connections are 0"
	case s.Completed*s.Elapsed > outcomes*slip || outcomes > s.Completed*s.Elapsed*slip:
		return fmt.Sprintf("completed_rps in elapsed_s are %.0f answers, and there are %.0f", s.Completed*s.Elapsed, outcomes)
	}
	for i := range s.Limits {
		l := &s.Limits[i]
		switch {
		case l.Admitted > l.Offered:
			return fmt.Sprintf("limits[%d] admitted more than were offered", i)
		case l.InFlight > s.InFlight:
			return fmt.Sprintf("limits[%d].in_flight_peak is above that of the sample", i)
		case l.Sending > l.Elapsed, l.Elapsed > s.Elapsed*slip:
			return fmt.Sprintf("limits[%d] was sent to for longer than it lasted, or lasted longer than the sample", i)
		}
	}
	return ""
}
