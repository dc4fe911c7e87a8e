package console

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

type requestIDKey struct{}

type actorKey struct{}

// requestID returns the id that identify gave the request.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// actorOf returns who makes the request. Only authenticated requests have an actor.
func actorOf(ctx context.Context) governance.Actor {
	by, _ := ctx.Value(actorKey{}).(governance.Actor)
	return by
}

// headerRequestID names a request. A client's own is kept if it is plain.
const headerRequestID = "X-Request-Id"

// headerReason is why a change is made, for the audit log.
const headerReason = "X-Tollgate-Reason"

func isPlainID(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// statusWriter remembers what was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap gives http.ResponseController the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// observe gives each request an id, a logger and one access line, and turns a panic into an answer.
func observe(log zerolog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := r.Header.Get(headerRequestID)
		if !isPlainID(id) {
			id = ids.New(start).String()
		}
		logger := log.With().Str(lognames.RequestID, id).Logger()
		ctx := logger.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		r = r.WithContext(ctx)
		out := &statusWriter{ResponseWriter: w}
		out.Header().Set(headerRequestID, id)
		defer func() {
			if cause := recover(); cause != nil {
				logger.Error().Interface("panic", cause).Bytes("stack", debug.Stack()).Msg("admin request panicked")
				if out.status == 0 {
					writeProblem(out, r, newProblem(http.StatusInternalServerError, string(governance.CodeInternal),
						"Something went wrong inside Tollgate. The log has more under this request id."))
				}
			}
			logger.Info().
				Str(lognames.Method, r.Method).
				Str(lognames.Path, r.URL.Path).
				Int(lognames.Status, out.status).
				Int64(lognames.Bytes, out.bytes).
				Int64(lognames.DurationMS, time.Since(start).Milliseconds()).
				Str(lognames.RemoteIP, remoteIP(r)).
				Msg("admin request")
		}()
		next.ServeHTTP(out, r)
	})
}

func remoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// guardBrowsers sets what keeps browsers from framing, sniffing, caching or leaking an answer, and refuses what another
// site makes them send.
func guardBrowsers(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, r, newProblem(http.StatusForbidden, codeForbidden, "Requests from other sites are refused."))
	}))
	inner := protection.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		inner.ServeHTTP(w, r)
	})
}

const (
	// failureBurst and failureEvery bound how fast one address is told that its token is wrong.
	failureBurst = 10
	failureEvery = 6 * time.Second
	// failureAddresses is how many addresses are remembered; beyond it all are forgotten.
	failureAddresses = 4096
)

// authenticator knows the admin token. Addresses that fail too often are answered 429; the right token always passes, so
// that nobody behind the same proxy can lock the operator out.
type authenticator struct {
	token [sha256.Size]byte

	mu       sync.Mutex
	failures map[string]*rate.Limiter // by address
}

func newAuthenticator(token secret.String) *authenticator {
	return &authenticator{token: sha256.Sum256([]byte(token.Reveal())), failures: make(map[string]*rate.Limiter)}
}

func (a *authenticator) require(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.knows(r) {
			a.refuse(w, r)
			return
		}
		by := governance.Actor{
			Kind: "admin_token", ID: "admin_token", Name: "admin token",
			IP: remoteIP(r), RequestID: requestID(r.Context()), Reason: r.Header.Get(headerReason),
		}
		if len(by.Reason) > maxReason || !isText(by.Reason) {
			writeProblem(w, r, invalid(fault{Location: "header." + headerReason, Message: "must be text of at most 1000 bytes"}))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, by)))
	})
}

// knows compares digests, so that neither the length nor the content of the token shows in the time it takes.
func (a *authenticator) knows(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	same := subtle.ConstantTimeCompare(given[:], a.token[:]) == 1
	return same && strings.EqualFold(scheme, "Bearer")
}

func (a *authenticator) refuse(w http.ResponseWriter, r *http.Request) {
	address := remoteIP(r)
	a.mu.Lock()
	limiter, ok := a.failures[address]
	if !ok {
		if len(a.failures) >= failureAddresses {
			clear(a.failures)
		}
		limiter = rate.NewLimiter(rate.Every(failureEvery), failureBurst)
		a.failures[address] = limiter
	}
	a.mu.Unlock()
	if !limiter.Allow() {
		zerolog.Ctx(r.Context()).Warn().Str(lognames.RemoteIP, address).Msg("too many failed logins")
		p := newProblem(http.StatusTooManyRequests, codeTooManyFailures, "Too many requests with a wrong token from this address.")
		p.retryAfter = failureEvery
		writeProblem(w, r, p)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="tollgate admin"`)
	writeProblem(w, r, newProblem(http.StatusUnauthorized, codeUnauthorized,
		"Send the admin token as Authorization: Bearer. It is the value of TOLLGATE_ADMIN_TOKEN of the server."))
}

// statusOnly keeps what the mux would answer to a request that it has no route for.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }

// routed answers what the mux does not know with problem details.
func routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		answer := &statusOnly{header: http.Header{}}
		handler.ServeHTTP(answer, r)
		if answer.status == http.StatusMethodNotAllowed {
			allowed := answer.header.Get("Allow")
			w.Header().Set("Allow", allowed)
			writeProblem(w, r, newProblem(http.StatusMethodNotAllowed, string(governance.CodeMethodNotAllowed),
				"This path accepts "+allowed+"."))
			return
		}
		writeProblem(w, r, newProblem(http.StatusNotFound, string(governance.CodeNotFound),
			"There is nothing at this path. GET /admin/v1/openapi.json lists what there is."))
	})
}

// welcome says what this listener is to someone who opens it.
func welcome(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	err := json.NewEncoder(w).Encode(map[string]string{
		"service":       "tollgate control plane",
		"admin_api":     prefix,
		"openapi":       prefix + "/openapi.json",
		"authorization": "Bearer, with the value of TOLLGATE_ADMIN_TOKEN",
	})
	if err != nil {
		zerolog.Ctx(r.Context()).Debug().Err(err).Msg("welcome not written")
	}
}
