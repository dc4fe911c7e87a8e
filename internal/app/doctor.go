package app

import (
	"context"
	"fmt"
	"io"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/config"
)

// Finding is one thing that the doctor looked at.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Says   string `json:"says"`
	Advice string `json:"advice,omitempty"`
}

// Examine looks at what the settings lead to and changes nothing.
func Examine(ctx context.Context, cfg *config.Config) []Finding {
	ctx, cancel := context.WithTimeout(ctx, 2*contactTimeout)
	defer cancel()
	a, err := build(ctx, cfg, io.Discard)
	if err != nil {
		return []Finding{{Name: "settings", Says: err.Error(), Advice: "correct the settings: tollgate config check"}}
	}
	defer func() { _ = a.Close() }() // nothing was begun
	found := []Finding{{Name: "settings", OK: true, Says: "valid"}}
	pool := a.data
	server, err := pgstore.ReadServer(ctx, pool)
	if err != nil {
		return append(found, Finding{
			Name: "database", Says: "cannot be reached: " + err.Error(),
			Advice: "check DATABASE_URL, the network, and that the role may log in",
		})
	}
	found = append(found, Finding{Name: "database", OK: true, Says: "PostgreSQL " + server.Version})
	if server.Major < 15 || server.Major > 18 {
		found = append(found, Finding{Name: "server version", Says: fmt.Sprintf("%d is not supported", server.Major), Advice: "use PostgreSQL 15 to 18"})
	}
	if !server.Durable {
		found = append(found, Finding{
			Name: "durability", Says: "fsync, full_page_writes or synchronous_commit is off: a crash can lose acknowledged rows",
			Advice: "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; ALTER SYSTEM SET synchronous_commit = on",
		})
	}
	have, dirty, err := pgstore.SchemaVersion(ctx, pool)
	need, _ := pgstore.LatestMigration() // the binary's own files
	schema := Finding{Name: "schema", OK: err == nil && have >= need && !dirty, Says: fmt.Sprintf("version %d, needed %d", have, need)}
	if !schema.OK {
		schema.Advice = "run: tollgate migrate up"
	}
	found = append(found, schema)
	if !schema.OK {
		return found
	}
	if err := pgstore.VerifySecrets(ctx, pool, append(a.peppers.Checks(), a.keys.Checks()...)...); err != nil {
		found = append(found, Finding{
			Name: "secrets", Says: err.Error(),
			Advice: "set TOLLGATE_KEY_PEPPERS and TOLLGATE_ENCRYPTION_KEYS to those this database was first used with, old ones behind the new",
		})
	} else {
		found = append(found, Finding{Name: "secrets", OK: true, Says: "peppers and encryption keys fit the database"})
	}
	if connections, err := a.examineConnections(ctx, pool, server); err == nil {
		found = append(found, connections)
	}
	if cfg.Serves(config.PlaneGateway) {
		found = append(found, role(ctx, a))
	}
	if a.control != nil {
		found = append(found, controlRole(ctx, a))
	}
	return found
}

func role(ctx context.Context, a *App) Finding {
	p, err := pgstore.ReadPrivileges(ctx, a.data)
	switch {
	case err != nil:
		return Finding{Name: "role", Says: err.Error()}
	case !p.OverPrivileged():
		return Finding{Name: "role", OK: true, Says: p.Role + " may do no more than the data plane needs"}
	case a.control != nil:
		return Finding{
			Name: "role", OK: true, Says: p.Role + " may do more than the data plane needs: it " + p.Summary(),
			Advice: "point DATABASE_URL at the role tollgate_gateway and TOLLGATE_DATABASE_CONTROL_URL at tollgate_control, or run a process of its own for each plane",
		}
	}
	return Finding{
		Name: "role", Says: p.Role + " may do more than the data plane needs: it " + p.Summary(),
		Advice: "point DATABASE_URL at the role tollgate_gateway",
	}
}

// controlRole looks at the role that admins' changes are made with: what is too much for the data plane is what it needs.
func controlRole(ctx context.Context, a *App) Finding {
	p, err := pgstore.ReadPrivileges(ctx, a.control)
	switch {
	case err != nil:
		return Finding{Name: "control role", Says: err.Error()}
	case !p.OverPrivileged():
		return Finding{
			Name: "control role", Says: p.Role + " may not write what admins change",
			Advice: "point TOLLGATE_DATABASE_CONTROL_URL at the role tollgate_control",
		}
	}
	return Finding{Name: "control role", OK: true, Says: p.Role + " may write what admins change"}
}
