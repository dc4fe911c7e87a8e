package devdb

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// owner is the user that the server runs as.
type owner struct {
	uid, gid uint32
	name     string
	foreign  bool // another user than this process
}

func ownerOf(name string) (owner, error) {
	if os.Geteuid() != 0 {
		return owner{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), name: "this user"}, nil
	}
	names := []string{name}
	if name == "" {
		names = []string{"postgres", "nobody"}
	}
	var fault error
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			fault = err
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return owner{}, fmt.Errorf("read id of user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return owner{}, fmt.Errorf("read group of user %s: %w", name, err)
		}
		if uid == 0 {
			return owner{}, fmt.Errorf("user %s is root, which PostgreSQL refuses", name)
		}
		return owner{uid: uint32(uid), gid: uint32(gid), name: "user " + name, foreign: true}, nil
	}
	return owner{}, fmt.Errorf("find a user for the database server: %w", fault)
}

// attributes start a process as the owner, in a session of its own: Ctrl-C in the terminal reaches this process alone,
// which stops the server when its work is done.
func (o owner) attributes() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setsid: true}
	if o.foreign {
		attributes.Credential = &syscall.Credential{Uid: o.uid, Gid: o.gid}
	}
	return attributes
}

func (o owner) take(path string) error {
	if !o.foreign {
		return nil
	}
	if err := os.Chown(path, int(o.uid), int(o.gid)); err != nil {
		return fmt.Errorf("give %s to %s: %w", path, o.name, err)
	}
	return nil
}

// reaches checks that the owner may enter dir and every folder above it.
func (o owner) reaches(dir string) error {
	for path := dir; ; path = filepath.Dir(path) {
		var stat syscall.Stat_t
		if err := syscall.Stat(path, &stat); err != nil {
			return fmt.Errorf("look at %s: %w", path, err)
		}
		enter := uint32(0o001)
		switch {
		case stat.Uid == o.uid:
			enter = 0o100
		case stat.Gid == o.gid:
			enter = 0o010
		}
		if stat.Mode&enter == 0 {
			return fmt.Errorf("the database server runs as %s, which may not enter %s: allow it (chmod a+x %s) or choose a data directory elsewhere", o.name, path, path)
		}
		if path == "/" {
			return nil
		}
	}
}

// socketDir makes the private folder of the socket. Its name is short, since the path of a socket is bounded, and
// follows from the cluster's, so that a DSN stays valid from start to start.
func (o owner) socketDir(cluster string) (string, error) {
	base := "/tmp"
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); !o.foreign && len(runtime) <= socketPathMax-32 && o.reaches(runtime) == nil {
		base = runtime
	}
	sum := sha256.Sum256([]byte(cluster))
	path := filepath.Join(base, "tollgate-"+hex.EncodeToString(sum[:6]))
	if o.owns(path) {
		return path, nil
	}
	err := os.Mkdir(path, 0o700)
	if os.IsExist(err) {
		// In a folder for everyone somebody else may have taken the name.
		path, err = os.MkdirTemp(base, "tollgate-")
	}
	if err != nil {
		return "", fmt.Errorf("make folder of the socket: %w", err)
	}
	if len(path) > socketPathMax {
		return "", fmt.Errorf("make folder of the socket: %s is longer than %d bytes", path, socketPathMax)
	}
	return path, o.take(path)
}

// owns reports whether path is a folder, and no link to one, that only the owner can enter.
func (o owner) owns(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == o.uid
}
