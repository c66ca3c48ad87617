package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/waittest"
)

const (
	patient = 3 * time.Minute
	tick    = 20 * time.Millisecond
)

// The programs, built.
var orderingProgram, partnerProgram string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ordering")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	orderingProgram, partnerProgram = filepath.Join(dir, "ordering"), filepath.Join(dir, "partner")
	for program, source := range map[string]string{orderingProgram: ".", partnerProgram: "../partner"} {
		if text, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s", text)
			return 1
		}
	}
	return m.Run()
}

// process is a program that runs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *logtest.Log
	ended  chan struct{}

	mu    sync.Mutex
	lines []string // of standard output
}

// start starts a program in dir. It is killed at the end of the test.
func start(t *testing.T, dir, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), stderr: &logtest.Log{}, ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stderr = dir, p.stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go p.read(out)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %v: standard error:\n%s", filepath.Base(program), args, p.stderr)
		}
	})
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if err != nil { // what a killed process wrote of a line doesn't count
			break
		}
		p.mu.Lock()
		p.lines = append(p.lines, strings.TrimSuffix(line, "\n"))
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // the exit status is read from its state
}

// output is what stands on standard output so far.
func (p *process) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.lines...)
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

// wait waits for the end and returns the exit status.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patient):
		p.t.Fatalf("%v doesn't end; standard error:\n%s", p.cmd.Args, p.stderr)
		return -1
	}
}

// stop is SIGTERM, upon which a program ends with status 0: it would have another if it took longer
// than engine.Config.StopTimeout.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	require.Zero(p.t, p.wait(), p.stderr)
}

func (p *process) eventually(condition func() bool, what string) {
	p.t.Helper()
	waittest.Until(p.t, func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return condition()
		}
	}, "%s: standard error:\n%s", what, p.stderr)
	require.True(p.t, condition(), "%v ended before: %s; standard error:\n%s", p.cmd.Args, what, p.stderr)
}

// finished is a program that has ended.
type finished struct {
	code           int
	stdout, stderr string
}

// runIn runs the program in dir to its end.
func runIn(t *testing.T, dir string, args ...string) finished {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patient)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, orderingProgram, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	err := cmd.Run()
	require.NoError(t, ctx.Err(), stderr.String())
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return finished{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// succeed runs the program and returns its standard output.
func succeed(t *testing.T, dir string, args ...string) string {
	t.Helper()
	f := runIn(t, dir, args...)
	require.Zero(t, f.code, "%v\n%s\n%s", args, f.stdout, f.stderr)
	return f.stdout
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

func decode[T any](t *testing.T, line string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(line), &v), line)
	return v
}

// told are the lines that place printed.
func told(t *testing.T, lines []string) (all []committed) {
	t.Helper()
	for _, line := range lines {
		all = append(all, decode[committed](t, line))
	}
	return all
}
