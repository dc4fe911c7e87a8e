package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// ErrPrivateAddress says that an upstream's name leads to an address inside of a network.
var ErrPrivateAddress = errors.New("address is not public")

// PublicOnly is an Options.DialControl that lets no connection go to loopback, private, link-local, shared, documentation,
// multicast or reserved addresses. It sees the address that a name has led to at the moment of the connection, so that a
// name which changes its mind between two look-ups gains nothing (T05).
func PublicOnly(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read address: %w", ErrPrivateAddress)
	}
	ip := at.Addr().Unmap().WithZone("")
	for _, inside := range specialPurpose {
		if inside.Contains(ip) {
			return ErrPrivateAddress
		}
	}
	return nil
}

// specialPurpose lists what is no public address: IANA's special-purpose registries, and the IPv6 forms that carry an IPv4
// address.
var specialPurpose = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/128"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("ff00::/8"),
}
