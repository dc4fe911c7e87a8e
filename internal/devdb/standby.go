package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// StandbyOptions of a standby.
type StandbyOptions struct {
	DataDir string // must not hold a cluster yet
	// Name is what synchronous_standby_names knows it by.
	Name string
	// Via is a loopback port that leads to the primary, for who wants to disturb the way. 0: the primary's socket.
	Via int
}

// StartStandby copies the cluster while it runs and starts the copy as a hot standby that follows it. It has the options of
// the cluster but for the data directory and Listen.
func (c *Cluster) StartStandby(ctx context.Context, o StandbyOptions) (*Cluster, error) {
	own := c.options
	own.DataDir, own.Listen = o.DataDir, ""
	s, err := prepare(ctx, own)
	if err != nil {
		return nil, err
	}
	source := fmt.Sprintf("host=%s port=%d", c.socketDir, c.port)
	if o.Via != 0 {
		source = fmt.Sprintf("host=127.0.0.1 port=%d sslmode=disable", o.Via)
	}
	if err := s.follow(ctx, fmt.Sprintf("%s user=%s application_name=%s", source, Superuser, o.Name)); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func (c *Cluster) follow(ctx context.Context, source string) error {
	if err := c.takeLock(); err != nil {
		return err
	}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return fmt.Errorf("make folder of the standby: %w", err)
	}
	if err := c.owner.take(c.dir); err != nil {
		return err
	}
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
