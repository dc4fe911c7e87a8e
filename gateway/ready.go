package gateway

import "errors"

var errDraining = errors.New("draining")

// Readiness reports why this process should get no new calls; nil: it should. It answers from memory: no lock that a call
// holds, no worker and no database is waited for. A database outage does not make it unready, since the typed 503 of
// each call is the better answer (contract, section 3).
func (g *Gateway) Readiness() error {
	if g.life.isDraining() {
		return errDraining
	}
	return g.begun()
}

// begun says why calls cannot be served yet: the configuration was not read once, since the database is away or not as it must
// be. Later its age is each call's affair.
func (g *Gateway) begun() error {
	if g.loaded.Load() {
		return nil
	}
	if _, err := g.catalogs.Current(); err != nil {
		return err
	}
	g.loaded.Store(true)
	return nil
}
