package fleet

import "syscall"

// attributes start a process in a session of its own, because Ctrl-C in a terminal is for the program that owns the fleet
// alone, and let it end together with a program that is killed and cannot end it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
