package fleet

import (
	"bufio"
	"bytes"
	"cmp"
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
	// Env are settings (NAME=value): of Fleet.Start further ones, which win, of Serve all that there are.
	Env []string
	// LogFile, if not empty, gets all that the process logs, behind what it has.
	LogFile string
}

// Process is one running program. Its methods may be called from any goroutine.
type Process struct {
	// BaseURL, AdminURL and OpsURL are where it listens; empty where it does not.
	BaseURL, AdminURL, OpsURL string

	client *http.Client
	cmd    *exec.Cmd
	first  chan []byte // the first line of its output
	log    tail
	done   chan struct{}
}

// Serve runs `tollgate serve` outside of a fleet and waits until it listens, which says nothing about its readiness. Ready
// asks through client. A process that was started is returned even with an error; it has then been killed.
func Serve(ctx context.Context, client *http.Client, s Spec) (*Process, error) {
	at := cmp.Or(s.Host, "127.0.0.1") + ":0"
	return start(ctx, client, s, "serve", "--planes", string(cmp.Or(s.Plane, PlaneGateway)), "--output", "json",
		"--listen", at, "--control-listen", at, "--ops-listen", at)
}

// CheckBinary finds out whether a program can be run at all, and is tollgate.
func CheckBinary(ctx context.Context, binary string) error {
	const most = 80 // bytes of what it says are shown
	out, err := exec.CommandContext(ctx, binary, "version").Output()
	if err != nil {
		return fmt.Errorf("cannot be run: %w", err)
	}
	if !bytes.HasPrefix(out, []byte("tollgate ")) {
		line, _, _ := bytes.Cut(out, []byte("\n"))
		return fmt.Errorf("%s is not tollgate: it says %q", binary, line[:min(len(line), most)])
	}
	return nil
}

// start runs a program that says in one line of JSON where it listens. A process that was started is returned even with
// an error; it has then been killed.
func start(ctx context.Context, client *http.Client, s Spec, args ...string) (*Process, error) {
	p, err := launch(client, s, args)
	if err == nil {
		err = p.awaitListening(ctx)
	}
	if err != nil {
		return p, fmt.Errorf("start tollgate %s: %w", args[0], err)
	}
	return p, nil
}

func launch(client *http.Client, s Spec, args []string) (*Process, error) {
	p := &Process{client: client, first: make(chan []byte, 1), done: make(chan struct{})}
	p.cmd = exec.Command(s.Binary, args...) //nolint:gosec,noctx // the caller names the program, and ends it
	p.cmd.Env, p.cmd.Stderr = s.Env, &p.log
	p.cmd.SysProcAttr = attributes()
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open its output: %w", err)
	}
	if s.LogFile != "" {
		if p.log.file, err = os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, fmt.Errorf("open its log: %w", err)
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, p.log.close())
	}
	go func() {
		lines := bufio.NewReader(stdout)
		line, _ := lines.ReadBytes('\n')
		p.first <- line
		_, _ = io.Copy(&p.log, lines)
		_ = p.cmd.Wait() // its fault is in the state
		_ = p.log.close()
		close(p.done)
	}()
	return p, nil
}

// awaitListening reads where the process listens. One that does not say so is killed.
func (p *Process) awaitListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var fault error
	select {
	case line := <-p.first:
		var said struct {
			BaseURL  string `json:"base_url"`
			AdminURL string `json:"admin_url"`
			OpsURL   string `json:"ops_url"`
		}
		if json.Unmarshal(line, &said) == nil {
			p.BaseURL, p.AdminURL, p.OpsURL = said.BaseURL, said.AdminURL, said.OpsURL
			return nil
		}
		fault = fmt.Errorf("it does not say where it listens, but %q", line)
	case <-ctx.Done():
		fault = fmt.Errorf("wait until it listens: %w", ctx.Err())
	}
	if err := p.Kill(); err != nil {
		return errors.Join(fault, err)
	}
	return fmt.Errorf("%w:\n%s", fault, p.Log()) // only now is all there that it had to say
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

// Pause stops the process where it is, as a machine that hangs would; Resume lets it go on as if nothing had happened.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

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

// tail keeps the end of what is written to it, and all of it where there is a file.
type tail struct {
	mu   sync.Mutex
	b    []byte
	file *os.File
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 2*logKept {
		t.b = append(t.b[:0], t.b[len(t.b)-logKept:]...)
	}
	if t.file != nil {
		_, _ = t.file.Write(p) // a full disk must not stop the process
	}
	return len(p), nil
}

func (t *tail) close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
