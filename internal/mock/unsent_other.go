//go:build !linux

package mock

import "net"

// awaitSent does nothing: only Linux is asked what was not sent yet.
func awaitSent(*net.TCPConn) {}
