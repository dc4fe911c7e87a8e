package mock

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// awaitSent waits until the client's machine has what was written, at most a second: a reset discards what it has not.
func awaitSent(conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return // it is gone already
	}
	for range 1000 {
		unsent := 0
		err := raw.Control(func(fd uintptr) { unsent, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
		if err != nil || unsent == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
