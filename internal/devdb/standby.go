package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// StartStandby copies the cluster while it runs and starts the copy in dataDir, which must not hold a cluster yet, as a hot
// standby that follows it. It has the options of the cluster but for the data directory and Listen. Its name, by which
// synchronous_standby_names knows it, is name.
func (c *Cluster) StartStandby(ctx context.Context, dataDir, name string) (*Cluster, error) {
	o := c.options
	o.DataDir, o.Listen = dataDir, ""
	s, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := s.follow(ctx, c, name); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func (c *Cluster) follow(ctx context.Context, primary *Cluster, name string) error {
	if err := c.takeLock(); err != nil {
		return err
	}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return fmt.Errorf("make folder of the standby: %w", err)
	}
	if err := c.owner.take(c.dir); err != nil {
		return err
	}
	source := fmt.Sprintf("host=%s port=%d user=%s application_name=%s", primary.socketDir, primary.port, Superuser, name)
	args := []string{"-D", c.dir, "-d", source, "-R", "-X", "stream", "-c", "fast"}
	if c.options.Fast {
		args = append(args, "--no-sync")
	}
	if err := c.tool(ctx, c.dir, "", "pg_basebackup", args...); err != nil {
		return err
	}
	socketDir, err := c.owner.socketDir(c.dir)
	if err != nil {
		return err
	}
	c.socketDir = socketDir
	return c.launch(ctx)
}

// Promote makes a standby that has lost its primary a primary, and returns when it takes writes.
func (c *Cluster) Promote(ctx context.Context) error {
	if err := c.tool(ctx, c.dir, "", "pg_ctl", "promote", "-w", "-D", c.dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(c.dir, "standby.signal")); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("promote standby: it still follows (%w)", err)
	}
	return nil
}
