package gateway

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// keyHeaders are the headers that may carry a credential besides Authorization, in the order in which they count.
var keyHeaders = []string{"X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// candidate is a credential and the header that it came in.
type candidate struct {
	header string
	text   string
}

// credential finds the caller's key. Where several are sent, the one in Tollgate's form counts; two different ones in that
// form, and a header given twice, are refused. from names the header for error texts. None at all is no error.
func credential(h http.Header) (key secret.String, from string, err error) {
	found, err := candidates(h)
	if err != nil || len(found) == 0 {
		return secret.String{}, "", err
	}
	ours := slices.DeleteFunc(slices.Clone(found), func(c candidate) bool { return !strings.HasPrefix(c.text, apikey.Prefix) })
	if len(ours) == 0 {
		return secret.New(found[0].text), found[0].header, nil
	}
	for _, c := range ours[1:] {
		if c.text != ours[0].text {
			return secret.String{}, "", fault(governance.CodeInvalidAPIKey,
				"Two different keys were sent, in "+ours[0].header+" and in "+c.header+". Send one.")
		}
	}
	return secret.New(ours[0].text), ours[0].header, nil
}

func candidates(h http.Header) ([]candidate, error) {
	var found []candidate
	add := func(header, text string) {
		if text = strings.TrimSpace(text); text != "" {
			found = append(found, candidate{header, text})
		}
	}
	for _, name := range append([]string{"Authorization"}, keyHeaders...) {
		values := h[name]
		if len(values) > 1 {
			return nil, invalid("", "The header "+name+" is given more than once.")
		}
		if len(values) == 0 {
			continue
		}
		if name != "Authorization" {
			add(name, values[0])
			continue
		}
		scheme, rest, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
		switch strings.ToLower(scheme) {
		case "bearer":
			add(name, rest)
		case "basic":
			user, password, ok := basic(rest)
			if !ok {
				return nil, fault(governance.CodeInvalidAPIKey, "The Basic credential of the header Authorization cannot be decoded.")
			}
			add(name, password) // curl -u :KEY and -u KEY: are both common
			add(name, user)
		}
	}
	return found, nil
}

func basic(encoded string) (user, password string, ok bool) {
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return "", "", false
	}
	user, password, _ = strings.Cut(string(text), ":")
	return user, password, true
}
