package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
)

var errDraining = errors.New("draining")

// Readiness reports why this process should get no new calls; nil: it should. It answers from memory: no lock that a call
// holds, no worker and no database is waited for. A database outage does not make it unready, since the typed 503 of
// each call is the better answer (contract, section 3).
func (g *Gateway) Readiness() error {
	if g.life.isDraining() {
		return errDraining
	}
	if _, err := g.catalogs.Current(); err == nil {
		g.loaded.Store(true)
	} else if !g.loaded.Load() {
		return err
	}
	if g.ready != nil {
		return g.ready()
	}
	return nil
}

// ReadyHandler answers /readyz: 200, or 503 with the reason.
func (g *Gateway) ReadyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status, state := http.StatusOK, map[string]string{"status": "ready"}
		if err := g.Readiness(); err != nil {
			status, state = http.StatusServiceUnavailable, map[string]string{"status": "unready", "reason": err.Error()}
		}
		writeState(w, status, state)
	})
}

// LiveHandler answers /livez: the process serves, whatever else is wrong.
func LiveHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeState(w, http.StatusOK, map[string]string{"status": "live"})
	})
}

func writeState(w http.ResponseWriter, status int, state map[string]string) {
	b, _ := json.Marshal(state) //nolint:errchkjson // strings always encode
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // a prober that left does not matter
}
