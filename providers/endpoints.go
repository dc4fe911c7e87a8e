package providers

import (
	"errors"
	"net/url"
	"path"
	"regexp"
	"sync"
)

var (
	// ErrBaseURL says that a base URL cannot be used.
	ErrBaseURL = errors.New("base URL must be http or https with a host, without user or fragment")

	// ErrDialect says that the upstream does not speak a dialect.
	ErrDialect = errors.New("dialect is not spoken by this kind of provider")
)

// versioned matches the segment of a path that names a version of an API: v1, v3, v1beta.
var versioned = regexp.MustCompile(`(^|/)v[0-9]+[a-z0-9]*(/|$)`)

// endpoint is where a dialect is spoken under a base URL.
type endpoint struct {
	base    string
	dialect Dialect
}

const maxEndpoints = 1 << 10 // that are remembered; there are as many as are configured

// Endpoints finds the addresses of dialects under base URLs and remembers them, since they take longer to put together than
// a small request. It is safe for concurrent use.
type Endpoints struct {
	pathOf      func(Dialect) (string, error)
	unversioned bool
	mu          sync.RWMutex
	known       map[endpoint]*url.URL
}

// NewEndpoints returns the endpoints of a kind of provider. pathOf tells a dialect's path behind that of the API's version.
func NewEndpoints(pathOf func(Dialect) (string, error)) *Endpoints {
	return &Endpoints{pathOf: pathOf, known: make(map[endpoint]*url.URL)}
}

// Unversioned makes the paths begin right behind a base URL, whether it names a version or not.
func (e *Endpoints) Unversioned() *Endpoints {
	e.unversioned = true
	return e
}

// Of returns the address of d under base, which may name the API's version already: https://host, https://host/v1/ and
// https://host/openai/v1 all do. A query stays. Errors are ErrBaseURL or those of pathOf, and never contain the URL.
func (e *Endpoints) Of(base string, d Dialect) (url.URL, error) {
	which := endpoint{base, d}
	e.mu.RLock()
	u := e.known[which]
	e.mu.RUnlock()
	if u != nil {
		return *u, nil
	}
	u, err := e.join(base, d)
	if err != nil {
		return url.URL{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.known) >= maxEndpoints {
		clear(e.known)
	}
	e.known[which] = u
	return *u, nil
}

func (e *Endpoints) join(base string, d Dialect) (*url.URL, error) {
	end, err := e.pathOf(d)
	if err != nil {
		return nil, err
	}
	u, err := ParseBase(base)
	if err != nil {
		return nil, err
	}
	if !e.unversioned && !versioned.MatchString(path.Clean("/"+u.Path)) {
		u = u.JoinPath("v1")
	}
	// Read anew as it is written, since the path that JoinPath makes of an empty one lacks its first slash.
	if u, err = url.Parse(u.JoinPath(end).String()); err != nil {
		return nil, ErrBaseURL
	}
	return u, nil
}

// ParseBase reads a base URL. Its error is ErrBaseURL, which does not contain the URL.
func ParseBase(base string) (*url.URL, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, ErrBaseURL
	}
	return u, nil
}
