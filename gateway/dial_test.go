package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
)

func TestT05_PublicOnly(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"127.0.0.1:80", "127.9.9.9:443", "0.0.0.0:80", "10.1.2.3:80", "100.64.0.1:80", "169.254.169.254:80", "172.16.0.1:80", "172.31.255.255:80",
		"192.168.1.1:80", "192.0.0.1:80", "198.18.0.1:80", "224.0.0.1:80", "255.255.255.255:80", "[::1]:80", "[::]:80", "[::ffff:127.0.0.1]:80",
		"[::ffff:a00:1]:80", "[64:ff9b::7f00:1]:80", "[2002:7f00:1::]:80", "[2001:0:1::]:80", "[fe80::1]:80", "[fe80::1%eth0]:80", "[fc00::1]:80",
		"[fd00:ec2::254]:80", "[ff02::1]:80", "nonsense", "",
	} {
		require.ErrorIs(t, gateway.PublicOnly(t.Context(), "tcp", address, nil), gateway.ErrPrivateAddress, address)
	}
	for _, address := range []string{"1.1.1.1:443", "8.8.8.8:443", "172.32.0.1:80", "[2606:4700::1111]:443", "100.128.0.1:443"} {
		require.NoError(t, gateway.PublicOnly(t.Context(), "tcp", address, nil), address)
	}
}

func TestT05_ARefusedAddressIsNeverConnectedTo(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.dial = gateway.PublicOnly; s.model("m", "small") })
	a := b.chat()
	require.Equal(t, http.StatusBadGateway, a.StatusCode)
	require.Equal(t, "upstream_unreachable", a.failure(t).Code)
	require.Zero(t, b.mock.Counts().Count)
	require.True(t, b.settled(1)[0].Release)
}
