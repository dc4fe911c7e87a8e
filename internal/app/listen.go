package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

const (
	headerTimeout   = 5 * time.Second
	idleConnection  = 120 * time.Second
	maxHeaderBytes  = 64 << 10
	opsWriteTimeout = 120 * time.Second // a CPU profile takes its time
)

// listener is one of a process's servers.
type listener struct {
	name   string
	net    net.Listener
	server *http.Server
}

func listen(ctx context.Context, name, address string, h http.Handler, write time.Duration) (*listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", name, err)
	}
	return &listener{name: name, net: l, server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleConnection,
		MaxHeaderBytes:    maxHeaderBytes,
		WriteTimeout:      write, // 0 for traffic: streams have deadlines of their own, event by event
	}}, nil
}

func (l *listener) url() string { return "http://" + l.net.Addr().String() }

// serve returns nil after the server was shut down or closed.
func (l *listener) serve() error {
	if err := l.server.Serve(l.net); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.name, err)
	}
	return nil
}

// operations is the handler of the operations listener. ready says why the process should get no traffic; nil: it should.
func operations(ready func() error, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		tellState(w, http.StatusOK, map[string]string{"status": "live"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			tellState(w, http.StatusServiceUnavailable, map[string]string{"status": "unready", "reason": err.Error()})
			return
		}
		tellState(w, http.StatusOK, map[string]string{"status": "ready"})
	})
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func tellState(w http.ResponseWriter, status int, state map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(state) //nolint:errchkjson // a prober that left does not matter
}
