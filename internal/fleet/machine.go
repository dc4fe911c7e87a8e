package fleet

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/version"
)

// Machine says what a measurement or a drill ran on. It names no host. What the system does not tell is empty.
type Machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	PostgreSQL  string `json:"postgresql"`
	Go          string `json:"go"`
	Tollgate    string `json:"tollgate"`
}

// Machine reads what the fleet runs on.
func (f *Fleet) Machine() Machine {
	memory, _ := strconv.ParseInt(field("/proc/meminfo", `(?m)^MemTotal:\s+(\d+) kB`), 10, 64) // 0 where it is not told
	return Machine{
		CPU:         field("/proc/cpuinfo", `(?m)^model name\s*: (.+)$`),
		Cores:       runtime.NumCPU(),
		MemoryBytes: memory << 10,
		Kernel:      field("/proc/sys/kernel/osrelease", `^(\S+)`),
		PostgreSQL:  field(f.Database.LogFile(), `starting PostgreSQL (\S+)`),
		Go:          runtime.Version(),
		Tollgate:    version.Version,
	}
}

// field returns the first group of a pattern's first match in a file.
func field(path, pattern string) string {
	text, err := os.ReadFile(path) //nolint:gosec // the caller's constants
	if err != nil {
		return ""
	}
	match := regexp.MustCompile(pattern).FindSubmatch(text)
	if match == nil {
		return ""
	}
	return strings.TrimSpace(string(match[1]))
}

// String is one line for people.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %.0f GiB, Linux %s, PostgreSQL %s, %s, tollgate %s",
		m.CPU, m.Cores, float64(m.MemoryBytes)/(1<<30), m.Kernel, m.PostgreSQL, m.Go, m.Tollgate)
}
