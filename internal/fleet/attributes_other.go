//go:build !linux

package fleet

import "syscall"

// attributes start a process in a session of its own, because Ctrl-C in a terminal is for the program that owns the fleet
// alone.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
