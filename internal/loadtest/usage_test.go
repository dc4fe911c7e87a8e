package loadtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseProcess_ReadsPastAnyName(t *testing.T) {
	t.Parallel()
	p, err := parseProcess([]byte("4711 (tmux: a) R 1 (x) S 42 4711 4711 0 -1 4194560 900 0 0 0 310 21 5 6 20 0 9 0 100 0 0\n"))
	require.NoError(t, err)
	require.Equal(t, process{parent: 42, own: 331, reaped: 11}, p)
	for _, text := range []string{"", "1 (a) S", "1 (a) S x 1 1 0 -1 0 0 0 0 0 1 1 1 1 20"} {
		_, err := parseProcess([]byte(text))
		require.ErrorIs(t, err, errAccounts, text)
	}
}

func TestParseMachine_LeavesInterruptsApart(t *testing.T) {
	t.Parallel()
	m, err := parseMachine([]byte("cpu  100 20 30 1000 50 4 6 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"))
	require.NoError(t, err)
	require.Equal(t, machineTime{working: 158, interrupts: 10, total: 1218}, m)
	for _, text := range []string{"", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7", "cpu 1 2 x 4 5 6 7 8"} {
		_, err := parseMachine([]byte(text))
		require.ErrorIs(t, err, errAccounts, text)
	}
}

func TestReadUsage_OfLivingProcesses(t *testing.T) {
	t.Parallel()
	p, err := readProcess(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getppid(), p.parent)
	family, err := readFamily(os.Getpid())
	require.NoError(t, err)
	require.GreaterOrEqual(t, family, p.own)
	size, err := peakResident(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, size, int64(1<<20))
	m, err := readMachine()
	require.NoError(t, err)
	require.Positive(t, m.total)
}

// Foreign is what the machine worked and none of the sample's processes did, of all that it could have worked.
func TestResources_ShareOutTheMachine(t *testing.T) {
	t.Parallel()
	from := usage{gateways: 100, postgres: 200, mock: 10, control: 5, load: 7, machine: machineTime{1000, 50, 10_000}}
	to := usage{gateways: 500, postgres: 500, mock: 60, control: 6, load: 56, machine: machineTime{2000, 60, 12_000}}
	r := resources(from, to, 2, 10_000)
	require.Equal(t, CPU{Gateways: 400, Postgres: 300, Mock: 50, Control: 1, Load: 49}, r.CPU)
	require.InDelta(t, 10.0, r.Foreign, 1e-9) // 1,000 less 800, of 2,000
	require.InDelta(t, 50.5, r.Busy, 1e-9)
	to.machine.working = 1100 // ticks are coarse: own ones may seem to be more than all
	require.Zero(t, resources(from, to, 2, 0).Foreign)
}
