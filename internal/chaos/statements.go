package chaos

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

//go:embed sql
var sqlFiles embed.FS

// statement returns a statement of the folder sql by its name.
func statement(name string) string {
	b, err := sqlFiles.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(fmt.Sprintf("no statement %q", name)) // a mistyped name, which every run finds
	}
	return string(b)
}

// statements returns those of a folder in the order of their names.
func statements(folder string) []string {
	names, err := fs.Glob(sqlFiles, "sql/"+folder+"/*.sql")
	if err != nil || len(names) == 0 {
		panic(fmt.Sprintf("no statements in %q", folder))
	}
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = statement(name[len("sql/") : len(name)-len(".sql")])
	}
	return all
}

// execute runs the statements of a folder, which have no parameters.
func execute(ctx context.Context, conn *pgx.Conn, folder string) error {
	for _, s := range statements(folder) {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("run statements of %s: %w", folder, err)
		}
	}
	return nil
}
