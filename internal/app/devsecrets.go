package app

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/wholefile"
)

// devSecrets are what `tollgate dev` makes at its first start and keeps in secrets.env, so that the second start, and
// further processes on the same database, know them.
type devSecrets struct {
	file           string
	AdminToken     secret.String
	KeyPeppers     secret.String
	EncryptionKeys secret.String
	DemoKey        secret.String // zero until the demo organization was made
	DatabaseURL    secret.String // as the control plane's role, which serves both planes
	OwnerURL       secret.String // as the schema's owner
}

// The DSNs of the private database. Their socket is where it was at the start before, as long as the data directory is.
const (
	databaseVariable = "DATABASE_URL"
	ownerVariable    = "TOLLGATE_DATABASE_DIRECT_URL"
)

func (s *devSecrets) members() map[string]*secret.String {
	return map[string]*secret.String{
		"TOLLGATE_ADMIN_TOKEN":     &s.AdminToken,
		"TOLLGATE_KEY_PEPPERS":     &s.KeyPeppers,
		"TOLLGATE_ENCRYPTION_KEYS": &s.EncryptionKeys,
		"TOLLGATE_DEMO_KEY":        &s.DemoKey,
		databaseVariable:           &s.DatabaseURL,
		ownerVariable:              &s.OwnerURL,
	}
}

// loadDevSecrets reads secrets.env of a data directory, makes what is missing, and notes the DSNs of the control plane's role
// and of the schema's owner.
func loadDevSecrets(dir, database, owner string) (*devSecrets, error) {
	s := &devSecrets{file: filepath.Join(dir, "secrets.env")}
	text, err := os.ReadFile(s.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	members := s.members()
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if m := members[name]; ok && m != nil {
			*m = secret.New(value)
		}
	}
	complete := s.DatabaseURL.Reveal() == database && s.OwnerURL.Reveal() == owner
	s.DatabaseURL, s.OwnerURL = secret.New(database), secret.New(owner)
	for member, fresh := range map[*secret.String]func() secret.String{
		&s.AdminToken:     func() secret.String { return secret.New("tg-admin-" + ids.Random62(43)) },
		&s.KeyPeppers:     func() secret.String { return seal.Generate("p1") },
		&s.EncryptionKeys: func() secret.String { return seal.Generate("k1") },
	} {
		if member.IsZero() {
			*member, complete = fresh(), false
		}
	}
	if complete {
		return s, nil
	}
	return s, s.save()
}

// save writes the file anew, readable by its owner alone; a crash leaves the old one.
func (s *devSecrets) save() error {
	var b bytes.Buffer
	b.WriteString("# Secrets of tollgate dev. Source this file to start further processes on the same database, which must be running.\n" +
		"# " + databaseVariable + " is what they need; " + ownerVariable + " has the owner's rights, for migrate, seed and ledger archive.\n")
	b.WriteString("TOLLGATE_ALLOW_PRIVATE_PROVIDERS=true\n") // the mock provider listens on loopback
	members := s.members()
	for _, name := range []string{
		"TOLLGATE_ADMIN_TOKEN", "TOLLGATE_KEY_PEPPERS", "TOLLGATE_ENCRYPTION_KEYS", "TOLLGATE_DEMO_KEY", databaseVariable, ownerVariable,
	} {
		if m := members[name]; !m.IsZero() {
			fmt.Fprintf(&b, "%s=%s\n", name, m.Reveal())
		}
	}
	err := wholefile.Write(s.file, func(w io.Writer) error { _, err := w.Write(b.Bytes()); return err })
	if err != nil {
		return fmt.Errorf("write secrets: %w", err)
	}
	return nil
}

// unquoted writes a DSN of the private database as it needs no quotes: those who read this file are shells as well as programs
// that would take a quote for a part of the value. A socket has no TLS, whatever sslmode says.
func unquoted(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("read DSN of the database: %w", err)
	}
	query := u.Query()
	u.Host = ":" + query.Get("port")
	u.RawQuery = url.Values{"host": {query.Get("host")}}.Encode()
	return u.String(), nil
}
