package app

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
)

// ownConnections is how many connections this process may have open at once, that of notifications included.
func (a *App) ownConnections() int {
	n := int(a.data.Config().MaxConns) + 1
	if a.control != nil {
		n += int(a.control.Config().MaxConns) + int(a.exports.Config().MaxConns)
	}
	return n
}

// examineConnections tells whether the processes that live, and this one, may need more connections than the server gives:
// whoever then comes last is refused, in the middle of a burst.
func (a *App) examineConnections(ctx context.Context, pool *pgxpool.Pool, server pgstore.Server) (Finding, error) {
	if server.Pooled {
		return Finding{Name: "connections", OK: true, Says: "a pooler stands between, which decides how many reach the server"}, nil
	}
	processes, err := pgstore.NewProcesses(pool).Processes(ctx)
	if err != nil {
		return Finding{}, err
	}
	alive := 1
	for _, p := range processes {
		if p.Alive {
			alive++
		}
	}
	need := alive * a.ownConnections()
	f := Finding{
		Name: "connections", OK: need <= server.Connections,
		Says: fmt.Sprintf("processes: %d, with up to %d connections each: %d of the %d that the server gives", alive, a.ownConnections(), need, server.Connections),
	}
	if !f.OK {
		f.Advice = "lower TOLLGATE_DATABASE_CONNS, raise max_connections, or put a transaction pooler between"
	}
	return f, nil
}

// warnOfConnections says at the start what would otherwise show under load.
func (a *App) warnOfConnections(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	server, err := pgstore.ReadServer(ctx, a.data)
	if err != nil {
		return // it has just gone away; everything else will say so
	}
	if f, err := a.examineConnections(ctx, a.data, server); err == nil && !f.OK {
		a.log.Warn().Msg("the database may run out of connections: " + f.Says + ": " + f.Advice)
	}
}

// observePools makes the state of the pools visible.
func (a *App) observePools() {
	for name, pool := range map[string]*pgxpool.Pool{"data": a.data, "control": a.control, "exports": a.exports} {
		if pool == nil {
			continue
		}
		of := prometheus.Labels{"pool": name}
		a.metrics.registry.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "tollgate_database_connections_open", Help: "Connections to the database.", ConstLabels: of,
			}, func() float64 { return float64(pool.Stat().TotalConns()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "tollgate_database_connections_used", Help: "Connections that somebody works with.", ConstLabels: of,
			}, func() float64 { return float64(pool.Stat().AcquiredConns()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "tollgate_database_connections_max", Help: "Most connections that may be open.", ConstLabels: of,
			}, func() float64 { return float64(pool.Stat().MaxConns()) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "tollgate_database_acquire_wait_seconds_total", Help: "Time that was waited for a free connection.", ConstLabels: of,
			}, func() float64 { return pool.Stat().EmptyAcquireWaitTime().Seconds() }),
		)
	}
}
