package mock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Options of a Server; the zero value is a good one.
type Options struct {
	// RequireKey, if set, is the only credential that is accepted, as bearer token or in x-api-key, api-key or
	// x-goog-api-key. Others are refused with 401.
	RequireKey secret.String
	// Script is what requests get that choose none.
	Script string
	// LogRequests and LogBytes bound the log; older requests make room, counted. Defaults: 20,000 requests, 256 MiB.
	LogRequests int
	LogBytes    int
}

// Server is the scripted upstream, an http.Handler for tests. It is safe for concurrent use.
type Server struct {
	requireKey  secret.String
	script      *Script
	log         recorder
	rules       rules
	objects     objects
	batches     batches
	acceptDelay atomic.Int64 // nanoseconds
}

// New returns a server. It fails only for a script that cannot be read.
func New(o Options) (*Server, error) {
	script, err := Parse(o.Script)
	if err != nil {
		return nil, err
	}
	s := &Server{requireKey: o.RequireKey, script: script}
	s.log.maxRequests, s.log.maxBytes = o.LogRequests, o.LogBytes
	if s.log.maxRequests <= 0 {
		s.log.maxRequests = 20_000
	}
	if s.log.maxBytes <= 0 {
		s.log.maxBytes = 256 << 20
	}
	s.acceptDelay.Store(int64(script.acceptDelay))
	return s, nil
}

// Log returns what was seen since the last reset, oldest first. Bodies and headers are shared: do not change them.
func (s *Server) Log() Log { return s.log.since(0) }

// Counts returns the sums of the log, at no cost.
func (s *Server) Counts() Counts { return s.log.now() }

// Reset forgets the log, not the rules. Requests in flight can no longer be released and end uncounted.
func (s *Server) Reset() { s.log.reset() }

// SetScript adds a rule ahead of the others.
func (s *Server) SetScript(r Rule) error {
	script, err := Parse(r.Script)
	if err != nil {
		return err
	}
	if r.Times < 0 {
		return fmt.Errorf("times is %d, below 0", r.Times)
	}
	s.rules.add(&rule{Rule: r, script: script})
	if script.acceptDelay > 0 {
		s.acceptDelay.Store(int64(script.acceptDelay))
	}
	return nil
}

// ClearScripts forgets all rules.
func (s *Server) ClearScripts() {
	s.rules.clear()
	s.acceptDelay.Store(int64(s.script.acceptDelay))
}

// Wait blocks until reached holds for the sums of the log, or ctx ends.
func (s *Server) Wait(ctx context.Context, reached func(Counts) bool) error {
	return s.log.wait(ctx, func() bool { return reached(s.log.counts) })
}

// Release lets request id, or with id 0 each request in flight, go steps steps on where it waits or will wait (scripts
// hold and confirm). It returns the number of requests that it reached.
func (s *Server) Release(id int64, steps int) int { return s.log.release(id, steps) }

// Serve answers on listener until ctx ends, and closes it. Requests in flight are then cut.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // what it could say is said by Serve
	defer stop()
	if err := server.Serve(s.Listener(listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve mock: %w", err)
	}
	return nil
}

// Listener wraps the listener of a server of one's own, for the script slow_accept.
func (s *Server) Listener(inner net.Listener) net.Listener {
	return &slowListener{inner, &s.acceptDelay}
}

type slowListener struct {
	net.Listener
	delay *atomic.Int64
}

func (l *slowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if delay := time.Duration(l.delay.Load()); err == nil && delay > 0 {
		return &slowConn{Conn: conn, ready: time.After(delay), closed: make(chan struct{})}, nil
	}
	return conn, err
}

// slowConn is a connection that the kernel has taken and the server not yet: nothing is read before ready.
type slowConn struct {
	net.Conn
	wait   sync.Once
	ready  <-chan time.Time
	close  sync.Once
	closed chan struct{}
}

func (c *slowConn) Read(b []byte) (int, error) {
	c.wait.Do(func() {
		select {
		case <-c.ready:
		case <-c.closed:
		}
	})
	return c.Conn.Read(b)
}

func (c *slowConn) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// call is one request while it is answered.
type call struct {
	server  *Server
	w       http.ResponseWriter
	r       *http.Request
	seen    *Request
	path    string // from /v1 on, without that
	dialect dialect
	body    body
	script  *Script
}

// ServeHTTP answers as the script of the request says.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.control(w, r) {
		return
	}
	raw, err := io.ReadAll(r.Body)
	q := newRequest(r, raw)
	s.log.add(q)
	p := player{call: &call{server: s, w: w, r: r, seen: q, path: trimVersion(r.URL.Path)}}
	defer func() { s.log.end(q, p.status, p.frames) }()
	if err != nil {
		s.log.abort(q) // the body was cut
		return
	}
	stop := context.AfterFunc(r.Context(), func() { s.log.abort(q) })
	defer func() {
		// The function's own goroutine may come after the end, or be stopped while the context is being cancelled.
		if !stop() || r.Context().Err() != nil {
			s.log.abort(q)
		}
	}()

	claude, resource, onVertex := claudeOnVertex(p.path)
	if onVertex {
		p.path = resource
	}
	p.dialect = dialectOf(r, p.path)
	faultInBody := p.body.read(r.Header.Get("Content-Type"), raw)
	if model, stream, ok := geminiModel(p.path); ok {
		p.body.Model, p.body.Stream = model, stream
	}
	if model, stream, ok := bedrockModel(p.path); ok {
		p.body.Model, p.body.Stream = model, stream
	}
	if claude != "" {
		p.body.Model = claude
	}
	p.script, err = s.choose(p.call, faultInBody == nil)
	switch {
	case err != nil:
		p.script = s.script
		p.play(p.refuse(http.StatusBadRequest, "object", err.Error()))
	case !s.authorized(r):
		p.play(p.refuse(http.StatusUnauthorized, "object", "Incorrect API key provided."))
	case faultInBody != nil:
		p.play(p.refuse(http.StatusBadRequest, "object", "We could not parse the JSON body of your request: "+faultInBody.Error()))
	case p.script.resetBeforeBytes:
		p.resetBeforeBytes()
	case p.path == "/realtime" || p.path == "/responses" && r.Header.Get("Upgrade") != "":
		p.websocket()
	default:
		p.play(p.answer())
	}
}

func newRequest(r *http.Request, body []byte) *Request {
	sum := sha256.Sum256(body)
	return &Request{
		Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header, Body: body, BodySHA256: hex.EncodeToString(sum[:]),
		Socket: r.RemoteAddr, ArrivedAt: time.Now(),
	}
}

// choose finds the script of a call; readable says that its body could be read.
func (s *Server) choose(c *call, readable bool) (*Script, error) {
	chosen := s.script
	if text := c.r.Header.Get("X-Mock-Script"); text != "" {
		parsed, err := Parse(text)
		if err != nil {
			return nil, err
		}
		chosen = parsed
	} else if byRule := s.rules.take(func(r *Rule) bool { return c.fits(r, readable) }); byRule != nil {
		chosen = byRule
	} else if text, ok := strings.CutPrefix(c.body.Model, "mock-"); ok {
		parsed, err := Parse(text)
		switch {
		case err == nil:
			chosen = parsed
		case errors.Is(err, errUnknownDirective) && !strings.Contains(text, "("): // a name
		default:
			return nil, err
		}
	}
	s.log.update(c.seen, func() { c.seen.Script = chosen.text })
	return chosen, nil
}

func (c *call) fits(r *Rule, readable bool) bool {
	if !strings.HasSuffix(c.r.URL.Path, r.Path) {
		return false
	}
	if len(r.Match) == 0 {
		return true
	}
	if !readable {
		return false
	}
	for name, want := range r.Match {
		if c.body.member(name) != want {
			return false
		}
	}
	return true
}

func (s *Server) authorized(r *http.Request) bool {
	return s.requireKey.IsZero() || slices.Contains(credentials(r), s.requireKey.Reveal())
}

// credentials returns what a request authenticates with.
func credentials(r *http.Request) []string {
	var found []string
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		found = append(found, bearer)
	}
	for _, name := range []string{"X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
		if value := r.Header.Get(name); value != "" {
			found = append(found, value)
		}
	}
	return found
}

// trimVersion cuts a path before its resource, however the base URL of the target is written.
func trimVersion(path string) string {
	for _, version := range []string{"/v1/", "/v2/"} {
		if at := strings.LastIndex(path, version); at >= 0 {
			return path[at+len(version)-1:]
		}
	}
	if _, rest, ok := strings.Cut(path, "/openai/deployments/"); ok {
		if _, resource, ok := strings.Cut(rest, "/"); ok {
			return "/" + resource
		}
	}
	return path
}

// control answers the mock's own endpoints, which are neither counted nor logged.
func (s *Server) control(w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasPrefix(r.URL.Path, "/_") {
		return false
	}
	var err error
	switch r.Method + " " + r.URL.Path {
	case "POST /_script":
		var rule Rule
		if err = json.UnmarshalRead(r.Body, &rule, json.RejectUnknownMembers(true)); err == nil {
			if err = s.SetScript(rule); err == nil {
				w.WriteHeader(http.StatusNoContent)
			}
		}
	case "GET /_script":
		reply(w, http.StatusOK, s.rules.all())
	case "DELETE /_script":
		s.ClearScripts()
		w.WriteHeader(http.StatusNoContent)
	case "POST /_batches":
		if err = s.SetBatches(r.URL.Query().Get("status")); err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	case "GET /_log":
		var after int64
		if after, err = number(r, "after", 0); err == nil {
			reply(w, http.StatusOK, s.log.since(after))
		}
	case "DELETE /_log":
		s.Reset()
		w.WriteHeader(http.StatusNoContent)
	case "GET /_count":
		err = s.count(w, r)
	case "POST /_release":
		err = s.releaseRequest(w, r)
	default:
		reply(w, http.StatusNotFound, map[string]string{"error": "no such control endpoint: " + r.Method + " " + r.URL.Path})
	}
	if err != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
	}
	return true
}

func (s *Server) count(w http.ResponseWriter, r *http.Request) error {
	var least [4]int64
	for i, name := range []string{"count", "ended", "aborted", "in_flight"} {
		n, err := number(r, name, 0)
		if err != nil {
			return err
		}
		least[i] = n
	}
	timeout := 10 * time.Second
	if text := r.URL.Query().Get("timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("read timeout: %w", err)
		}
		timeout = d
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	err := s.Wait(ctx, func(c Counts) bool {
		return c.Count >= least[0] && c.Ended >= least[1] && c.Aborted >= least[2] && int64(c.InFlight) >= least[3]
	})
	status := http.StatusOK
	if err != nil {
		status = http.StatusGatewayTimeout
	}
	reply(w, status, s.Counts())
	return nil
}

func (s *Server) releaseRequest(w http.ResponseWriter, r *http.Request) error {
	id, err := number(r, "id", 0)
	if err != nil {
		return err
	}
	steps, err := number(r, "steps", 1)
	if err != nil {
		return err
	}
	released := s.Release(id, int(min(steps, maxNumber)))
	status := http.StatusOK
	if released == 0 {
		status = http.StatusNotFound
	}
	reply(w, status, map[string]int{"released": released})
	return nil
}

// number reads a query parameter that is not negative.
func number(r *http.Request, name string, otherwise int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s is %q, no number", name, text)
	}
	return n, nil
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client of the control endpoints that has left needs no answer.
	_ = json.MarshalWrite(w, v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}
