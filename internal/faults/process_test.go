package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	log   string // its standard error, a file
	ended chan struct{}

	mu    sync.Mutex
	lines []string // of standard output
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
	log, err := os.CreateTemp(scratch, name+"-*.log")
	require.NoError(t, err)
	defer log.Close()
	p := &process{t: t, name: name, cmd: cmd, log: log.Name(), ended: make(chan struct{})}
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go p.read(out)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := p.logged()
			t.Logf("%s (process %d) ended with:\n%s", p.name, p.pid(), text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		p.mu.Lock()
		p.lines = append(p.lines, strings.TrimSpace(line))
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // how it ended is read from its state
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) logged() string {
	text, err := os.ReadFile(p.log)
	require.NoError(p.t, err)
	return string(text)
}

// output is what the process has said.
func (p *process) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// said is how often the process has said something.
func (p *process) said(what string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if line == what {
			n++
		}
	}
	return n
}

// open opens the node's gate.
func (p *process) open() {
	p.t.Helper()
	_, err := io.WriteString(p.in, "\n")
	require.NoError(p.t, err)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// pause returns when the process does nothing any more.
func (p *process) pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	tasks := fmt.Sprintf("/proc/%d/task", p.pid())
	eventually(p.t, func() bool {
		threads, err := os.ReadDir(tasks)
		require.NoError(p.t, err)
		return !slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
			stat, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "stat"))
			_, state, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(state, "T")
		})
	}, "%s doesn't stop", p.name)
}

func (p *process) resume() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
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
	require.Zero(p.t, p.cmd.ProcessState.ExitCode(), "%s: %v\n%s", p.name, p.cmd.ProcessState, p.logged())
}

// wait waits for the end.
func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // for its goroutines
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			p.kill()
		}
		text := p.logged()
		require.FailNow(p.t, "it doesn't end", "%s\n%s", p.name, text[max(0, len(text)-30_000):])
	}
}

// until waits for the process to say something n times.
func (p *process) until(what string, n int) {
	p.t.Helper()
	eventually(p.t, func() bool {
		select {
		case <-p.ended:
			require.GreaterOrEqual(p.t, p.said(what), n, "%s ended: %v\n%s", p.name, p.cmd.ProcessState, p.logged())
		default:
		}
		return p.said(what) >= n
	}, "%s says %q", p.name, what)
}

const (
	patience = 3 * time.Minute
	tick     = 20 * time.Millisecond
)

func eventually(t *testing.T, condition func() bool, format string, args ...any) {
	t.Helper()
	waittest.Until(t, condition, append([]any{format}, args...)...)
}
