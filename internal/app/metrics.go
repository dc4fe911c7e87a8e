package app

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tollgate-gateway/tollgate/internal/version"
)

// metrics is a process's own registry. It implements plugins.Registry, so that plugins need no Prometheus of their own.
type metrics struct{ registry *prometheus.Registry }

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tollgate_build_info", Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": version.Version, "commit": version.Commit},
	})
	build.Set(1)
	r.MustRegister(build)
	return &metrics{r}
}

// Counter registers a counter and returns the function that adds one for a set of label values.
func (m *metrics) Counter(name, help string, labels ...string) func(values ...string) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	if len(labels) == 0 {
		c.WithLabelValues() // shown from the start, at zero
	}
	return func(values ...string) { c.WithLabelValues(values...).Inc() }
}

// Histogram registers a histogram and returns the function that observes a value for a set of label values.
func (m *metrics) Histogram(name, help string, buckets []float64, labels ...string) func(value float64, values ...string) {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(h)
	return func(value float64, values ...string) { h.WithLabelValues(values...).Observe(value) }
}

// gauge registers a gauge that is read when it is scraped.
func (m *metrics) gauge(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
