package bedrock

import (
	"errors"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// ErrCredential says that a credential is neither an API key nor access keys. It shows nothing of it.
var ErrCredential = errors.New(
	`the credential must be a Bedrock API key, or a JSON object with "access_key_id", "secret_access_key" and, where needed, ` +
		`"session_token" and "region"`)

// accessKeys are what requests are signed with.
type accessKeys struct {
	AccessKeyID     string `json:"access_key_id"`
	SecretAccessKey string `json:"secret_access_key"`
	SessionToken    string `json:"session_token"`
	Region          string `json:"region"` // "": that of the base URL
}

// readCredential returns the access keys of a credential, or nil for an API key.
func readCredential(credential secret.String) (*accessKeys, error) {
	text := strings.TrimSpace(credential.Reveal())
	if !strings.HasPrefix(text, "{") {
		if !isWord(text) {
			return nil, ErrCredential
		}
		return nil, nil //nolint:nilnil // an API key has no parts
	}
	var keys accessKeys
	if json.Unmarshal([]byte(text), &keys, json.RejectUnknownMembers(true)) != nil ||
		!isWord(keys.AccessKeyID) || !isWord(keys.SecretAccessKey) ||
		keys.SessionToken != "" && !isWord(keys.SessionToken) || keys.Region != "" && !isWord(keys.Region) {
		return nil, ErrCredential
	}
	return &keys, nil
}

// isWord reports whether a text may stand in a header.
func isWord(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// CheckCredential implements providers.CredentialChecker.
func (Provider) CheckCredential(credential secret.String) error {
	_, err := readCredential(credential)
	return err
}
