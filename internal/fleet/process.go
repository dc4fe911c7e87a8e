package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// readyTimeout is how long a process may take until it is ready, on a machine that is busy with other things.
	readyTimeout = time.Minute
	pollInterval = 10 * time.Millisecond
	// logKept is how much of the end of a process's log is kept, in bytes.
	logKept = 64 << 10
)

// Plane is what a process serves.
type Plane string

// The planes.
const (
	PlaneGateway Plane = "gateway"
	PlaneControl Plane = "control"
)

// Spec says which process to start.
type Spec struct {
	// Binary is the program; default the fleet's.
	Binary string
	// Plane is what it serves; default the gateway.
	Plane Plane
	// Host is the address that it listens on, at ports of its own; default 127.0.0.1.
	Host string
	// Env are further settings (NAME=value); they win.
	Env []string
}

// Process is one running program of the fleet. Its methods may be called from any goroutine.
type Process struct {
	// BaseURL, AdminURL and OpsURL are where it listens; empty where it does not.
	BaseURL, AdminURL, OpsURL string

	client *http.Client
	cmd    *exec.Cmd
	log    tail
	done   chan struct{}
}

// start runs a program that says in one line of JSON where it listens. A process that was started is returned even with
// an error; it has then been killed.
func start(ctx context.Context, client *http.Client, binary string, env []string, args ...string) (*Process, error) {
	p := &Process{client: client, done: make(chan struct{})}
	p.cmd = exec.Command(binary, args...) //nolint:gosec,noctx // the caller names the program; Close ends it
	p.cmd.Env, p.cmd.Stderr = env, &p.log
	p.cmd.SysProcAttr = attributes()
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open its output: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	first := make(chan []byte, 1)
	go func() {
		lines := bufio.NewReader(stdout)
		line, _ := lines.ReadBytes('\n')
		first <- line
		_, _ = io.Copy(&p.log, lines)
		_ = p.cmd.Wait() // its fault is in the state
		close(p.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case line := <-first:
		var said struct {
			BaseURL  string `json:"base_url"`
			AdminURL string `json:"admin_url"`
			OpsURL   string `json:"ops_url"`
		}
		if err := json.Unmarshal(line, &said); err != nil {
			return p, errors.Join(fmt.Errorf("it does not say where it listens:\n%s%s", line, p.Log()), p.Kill())
		}
		p.BaseURL, p.AdminURL, p.OpsURL = said.BaseURL, said.AdminURL, said.OpsURL
		return p, nil
	case <-ctx.Done():
		return p, errors.Join(fmt.Errorf("wait until it listens: %w:\n%s", ctx.Err(), p.Log()), p.Kill())
	}
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is that of a process that has ended; -1 while it runs and where a signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Log is the end of what the process logged.
func (p *Process) Log() string { return p.log.String() }

// Terminate asks the process to drain and end; Done tells when it has.
func (p *Process) Terminate() error { return p.signal(syscall.SIGTERM) }

// Kill ends the process as a crash would and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.Pid(), err)
	}
	return nil
}

// Ready reports whether the process says that it can take traffic.
func (p *Process) Ready(ctx context.Context) bool {
	status, _, err := exchange(ctx, p.client, http.MethodGet, p.OpsURL+"/readyz", nil, nil)
	return err == nil && status == http.StatusOK
}

func (p *Process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !p.Ready(ctx) {
		select {
		case <-ticker.C:
		case <-p.done:
			return fmt.Errorf("process %d ended at once (%s):\n%s", p.Pid(), p.cmd.ProcessState, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("wait until process %d is ready: %w:\n%s", p.Pid(), ctx.Err(), p.Log())
		}
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 2*logKept {
		t.b = append(t.b[:0], t.b[len(t.b)-logKept:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
