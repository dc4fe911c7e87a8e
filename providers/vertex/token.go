package vertex

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/jwt"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// ErrCredential says that a credential is neither an access token nor the key of a service account. It shows nothing of it.
var ErrCredential = errors.New(
	`the credential must be the JSON key of a service account, with "client_email", "private_key" and a "token_uri" of Google's, ` +
		`or an access token`)

// serviceAccount is a key file as Google's console gives it, as far as it is needed.
type serviceAccount struct {
	Type         string `json:"type"`
	ProjectID    string `json:"project_id"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	ClientEmail  string `json:"client_email"`
	TokenURI     string `json:"token_uri"`
}

// tokenURI is where Google exchanges assertions for access tokens. No other address is called, whatever a key file says: it is
// a tenant's to write, and the call would be ours.
const tokenURI = "https://oauth2.googleapis.com/token" //nolint:gosec // an address

// scope is what Vertex AI asks for.
const scope = "https://www.googleapis.com/auth/cloud-platform"

// readCredential returns the service account of a credential, or nil for an access token.
func readCredential(credential secret.String) (*serviceAccount, error) {
	text := strings.TrimSpace(credential.Reveal())
	if !strings.HasPrefix(text, "{") {
		if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, ErrCredential
		}
		return nil, nil //nolint:nilnil // an access token has no parts
	}
	var a serviceAccount
	if json.Unmarshal([]byte(text), &a) != nil || a.Type != "service_account" ||
		a.ClientEmail == "" || a.TokenURI != "" && a.TokenURI != tokenURI || !isProject(a.ProjectID) || !isKey(a.PrivateKey) {
		return nil, ErrCredential
	}
	return &a, nil
}

// isProject reports whether a project's name may stand in a path; none at all may too.
func isProject(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == ':')
	})
}

// isKey reports whether a text is a private RSA key in PEM.
func isKey(text string) bool {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return false
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		_, isRSA := key.(*rsa.PrivateKey)
		return isRSA
	}
	_, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	return err == nil
}

const (
	fetchTime   = 10 * time.Second // for one exchange
	ahead       = 5 * time.Minute  // how long before its end a token is renewed
	retryAfter  = 5 * time.Second  // how long after a failed fetch the next is tried: calls between share what became of it
	leastLeft   = 10 * time.Second // a token with less time left serves nobody
	maxAccounts = 1 << 10          // whose tokens are kept; there are as many as are configured
)

// tokens keeps the access token of each service account. It is safe for concurrent use.
type tokens struct {
	now    func() time.Time
	uri    string // tokenURI
	client *http.Client

	mu    sync.Mutex
	known map[[sha256.Size]byte]*token // by the hash of the credential
}

// token is the access token of one service account.
type token struct {
	turn chan struct{} // holds one value: who has taken it may renew

	mu      sync.Mutex
	value   secret.String
	expires time.Time
	renew   time.Time // when the next fetch is due
	failed  error     // what became of the last one
}

func newTokens(now func() time.Time) *tokens {
	transport := &http.Transport{
		Proxy:                 nil, // never from the environment
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		DisableKeepAlives:     true, // once an hour
		ResponseHeaderTimeout: fetchTime,
	}
	return &tokens{
		now: now, uri: tokenURI, known: make(map[[sha256.Size]byte]*token),
		client: &http.Client{
			Transport: transport, Timeout: fetchTime,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// of returns a token of the account. The caller that finds one near its end renews it, while the others go on with it; where
// there is none they wait for the one that fetches it. A fetch is bounded by its own time, and does not end with the call
// that began it.
func (t *tokens) of(ctx context.Context, account *serviceAccount, credential secret.String) (secret.String, error) {
	kept := t.kept(credential)
	value, due, failed := kept.look(t.now())
	if !due {
		return value, failed
	}
	if failed == nil {
		select {
		case <-kept.turn:
		default:
			return value, nil // somebody renews it
		}
	} else {
		select {
		case <-kept.turn:
		case <-ctx.Done():
			return secret.String{}, fmt.Errorf("wait for access token: %w", context.Cause(ctx))
		}
	}
	defer func() { kept.turn <- struct{}{} }()
	if _, due, _ = kept.look(t.now()); due { // nobody has fetched it meanwhile
		t.fetch(account, kept)
	}
	value, _, failed = kept.look(t.now())
	return value, failed
}

func (t *tokens) kept(credential secret.String) *token {
	key := sha256.Sum256([]byte(credential.Reveal()))
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.known[key]
	if kept == nil {
		if len(t.known) >= maxAccounts {
			clear(t.known)
		}
		kept = &token{turn: make(chan struct{}, 1)}
		kept.turn <- struct{}{}
		t.known[key] = kept
	}
	return kept
}

// errNone says that there is no token yet, or none any more.
var errNone = errors.New("there is no access token")

// look returns the token, or why there is none that serves, and whether a fetch is due.
func (k *token) look(now time.Time) (value secret.String, due bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Before(k.expires.Add(-leastLeft)) {
		return k.value, !now.Before(k.renew), nil
	}
	if k.failed == nil {
		return secret.String{}, true, errNone
	}
	return secret.String{}, !now.Before(k.renew), k.failed
}

// fetch exchanges an assertion of the account for a token, and takes note of what became of it.
func (t *tokens) fetch(account *serviceAccount, into *token) {
	value, life, err := t.exchange(account)
	now := t.now()
	into.mu.Lock()
	defer into.mu.Unlock()
	if into.failed = err; err != nil {
		into.renew = now.Add(retryAfter)
		return
	}
	into.value, into.expires = value, now.Add(life)
	into.renew = now.Add(max(life-ahead, life/2))
}

func (t *tokens) exchange(account *serviceAccount) (value secret.String, life time.Duration, err error) {
	config := jwt.Config{
		Email: account.ClientEmail, PrivateKey: []byte(account.PrivateKey), PrivateKeyID: account.PrivateKeyID,
		Scopes: []string{scope}, TokenURL: t.uri, Audience: tokenURI,
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, t.client) // the client bounds its time
	got, err := config.TokenSource(ctx).Token()
	switch refusal, refused := errors.AsType[*oauth2.RetrieveError](err); {
	case refused: // its text may name the account
		return value, 0, fmt.Errorf("fetch access token: status %d", refusal.Response.StatusCode)
	case err != nil:
		return value, 0, errors.New("fetch access token: the token endpoint cannot be reached or understood")
	case got.AccessToken == "" || strings.ContainsFunc(got.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }):
		return value, 0, errors.New("fetch access token: the answer has none")
	}
	if got.Expiry.IsZero() {
		return secret.New(got.AccessToken), time.Hour, nil // as Google's tokens have
	}
	return secret.New(got.AccessToken), time.Until(got.Expiry), nil
}
