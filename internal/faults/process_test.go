package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/waittest"
)

// program is this package's test binary without the race detector, which would
// make the processes slower than those that they stand for.
var program = sync.OnceValues(func() (string, error) { return build("node") })

func build(name string, flags ...string) (string, error) {
	path := filepath.Join(scratch, name)
	args := append([]string{"test", "-c", "-vet=off", "-o", path}, flags...)
	if text, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %v: %w\n%s", args, err, text)
	}
	return path, nil
}

// process is a node that runs.
type process struct {
	*chaos.Process

	t *testing.T
}

// start starts a node.
func start(t *testing.T, program, name string, cfg nodeConfig, env ...string) *process {
	t.Helper()
	text, err := json.Marshal(cfg)
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env = append(append(os.Environ(), nodeVar+"="+string(text)), env...)
	return launch(t, name, cmd)
}

// launch starts a program. It is killed at the end of the test.
func launch(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	running, err := chaos.Launch(scratch, name, cmd, nil)
	require.NoError(t, err)
	p := &process{running, t}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text := p.logged()
			t.Logf("%s (process %d) ended with:\n%s", p.Name, p.PID(), text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *process) logged() string {
	text, err := p.Logged()
	require.NoError(p.t, err)
	return text
}

// open opens the node's gate.
func (p *process) open() {
	p.t.Helper()
	require.NoError(p.t, p.Tell(""))
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.Signal(s))
}

// pause returns when the process does nothing any more.
func (p *process) pause() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(p.t, p.Pause(ctx))
}

func (p *process) resume() {
	p.t.Helper()
	require.NoError(p.t, p.Resume())
}

// terminate is SIGTERM, upon which a node ends cleanly.
func (p *process) terminate() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.finish()
}

func (p *process) finish() {
	p.t.Helper()
	p.wait()
	require.Zero(p.t, p.State().ExitCode(), "%s: %v\n%s", p.Name, p.State(), p.logged())
}

// wait waits for the end.
func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // for its goroutines
		select {
		case <-p.Ended():
		case <-time.After(10 * time.Second):
			p.Kill()
		}
		text := p.logged()
		require.FailNow(p.t, "it doesn't end", "%s\n%s", p.Name, text[max(0, len(text)-30_000):])
	}
}

// until waits for the process to say something n times.
func (p *process) until(what string, n int) {
	p.t.Helper()
	eventually(p.t, func() bool {
		select {
		case <-p.Ended():
			require.GreaterOrEqual(p.t, p.Said(what), n, "%s ended: %v\n%s", p.Name, p.State(), p.logged())
		default:
		}
		return p.Said(what) >= n
	}, "%s says %q", p.Name, what)
}

const (
	patience = 3 * time.Minute
	tick     = 20 * time.Millisecond
)

func eventually(t *testing.T, condition func() bool, format string, args ...any) {
	t.Helper()
	waittest.Until(t, condition, append([]any{format}, args...)...)
}
