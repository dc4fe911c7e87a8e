package loadtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// tick is the unit of the kernel's accounts, in microseconds: 100 a second on every Linux.
const tick = 10_000

// usage is CPU time so far, in ticks.
type usage struct {
	gateways, postgres, mock, control, load int64
	machine                                 machineTime
}

// machineTime is that of all cores since the machine started, in ticks.
type machineTime struct {
	// working is what processes, and other machines on the same hardware, had; interrupts belong to nobody.
	working, interrupts, total int64
}

// readUsage reads the accounts of the sample's processes and of the machine.
func readUsage(f *fleet.Fleet, gateways []*fleet.Process) (usage, error) {
	var u usage
	var faults []error
	one := func(pid int) int64 {
		p, err := readProcess(pid)
		faults = append(faults, err)
		return p.own
	}
	for _, g := range gateways {
		u.gateways += one(g.Pid())
	}
	u.mock, u.control, u.load = one(f.Mock.Pid()), one(f.Control.Pid()), one(os.Getpid())
	var err error
	u.postgres, err = readFamily(f.Database.Pid())
	faults = append(faults, err)
	u.machine, err = readMachine()
	return u, errors.Join(append(faults, err)...)
}

// process is one line of accounts.
type process struct {
	parent      int
	own, reaped int64 // reaped is that of children that ended
}

func readProcess(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, fmt.Errorf("read CPU time: %w", err)
	}
	return parseProcess(text)
}

var errAccounts = errors.New("the kernel's accounts have an unknown form")

// parseProcess reads /proc/PID/stat, see proc_pid_stat(5). The name in parentheses may hold anything.
func parseProcess(text []byte) (process, error) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return process{}, errAccounts
	}
	var n [5]int64
	for i, at := range [5]int{1, 11, 12, 13, 14} { // ppid, utime, stime, cutime, cstime
		var err error
		if n[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return process{}, errAccounts
		}
	}
	return process{parent: int(n[0]), own: n[1] + n[2], reaped: n[3] + n[4]}, nil
}

// readFamily reads the time of a process and of all its children, those that ended included.
func readFamily(pid int) (int64, error) {
	head, err := readProcess(pid)
	if err != nil {
		return 0, err
	}
	sum := head.own + head.reaped
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path) //nolint:gosec // the kernel's own files
		if err != nil {
			continue // it has just ended
		}
		if p, err := parseProcess(text); err == nil && p.parent == pid {
			sum += p.own
		}
	}
	return sum, nil
}

func readMachine() (machineTime, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineTime{}, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	return parseMachine(text)
}

// parseMachine reads the first line of /proc/stat, see proc_stat(5). Guests are within user and nice.
func parseMachine(text []byte) (machineTime, error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return machineTime{}, errAccounts
	}
	var n [8]int64 // user, nice, system, idle, iowait, irq, softirq, steal
	var m machineTime
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(fields[i+1], 10, 64); err != nil {
			return machineTime{}, errAccounts
		}
		m.total += n[i]
	}
	m.working, m.interrupts = n[0]+n[1]+n[2]+n[7], n[5]+n[6]
	return m, nil
}

// resources tells what was used between two readings, for so many requests.
func resources(from, to usage, cores, requests int) Resources {
	per := func(ticks int64) float64 { return float64(ticks) * tick / float64(max(requests, 1)) }
	own := func(u usage) int64 { return u.gateways + u.postgres + u.mock + u.control + u.load }
	working := to.machine.working - from.machine.working
	foreign := max(working-(own(to)-own(from)), 0)
	total := max(to.machine.total-from.machine.total, 1)
	busy := working + to.machine.interrupts - from.machine.interrupts
	return Resources{
		Cores: cores,
		CPU: CPU{
			Gateways: per(to.gateways - from.gateways), Postgres: per(to.postgres - from.postgres),
			Mock: per(to.mock - from.mock), Control: per(to.control - from.control), Load: per(to.load - from.load),
		},
		Foreign: 100 * float64(foreign) / float64(total),
		Busy:    100 * float64(busy) / float64(total),
	}
}

// peakResident is the highest resident size that a process has had, in bytes.
func peakResident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, errAccounts
			}
			return kib << 10, nil
		}
	}
	return 0, errAccounts
}
