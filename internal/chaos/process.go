package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Process is a program that runs to be killed and stopped.
type Process struct {
	Name string

	cmd   *exec.Cmd
	in    io.WriteCloser
	log   string // its standard error, a file
	hear  func(line string)
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

// Launch starts a program, whose standard error goes to a file in dir. What it says on
// standard output goes to hear, or is kept for [Process.Output] if hear is nil.
func Launch(dir, name string, cmd *exec.Cmd, hear func(line string)) (*Process, error) {
	log, err := os.CreateTemp(dir, name+"-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p := &Process{Name: name, cmd: cmd, log: log.Name(), hear: hear, ended: make(chan struct{})}
	if hear == nil {
		p.hear = p.keep
	}
	p.cmd.Stderr = log
	detach(cmd)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	return p, nil
}

func (p *Process) keep(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
}

// read hears whole lines: the last one of a killed process may not be.
func (p *Process) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		p.hear(strings.TrimSpace(line))
	}
	_ = p.cmd.Wait() // how it ended is read from its state
}

// PID is its number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Logged is what it has written to standard error.
func (p *Process) Logged() (string, error) {
	text, err := os.ReadFile(p.log)
	return string(text), err
}

// Output is what it has said, unless somebody hears it.
func (p *Process) Output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// Said is how often it has said something.
func (p *Process) Said(what string) (n int) {
	for _, line := range p.Output() {
		if line == what {
			n++
		}
	}
	return n
}

// Tell writes a line to its standard input.
func (p *Process) Tell(line string) error {
	_, err := io.WriteString(p.in, line+"\n")
	return err
}

// Ended is closed when it has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// State is how it ended, nil while it runs.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Signal sends it a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill is kill -9, and waits for the end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// Pause stops it, and returns when it does nothing any more.
func (p *Process) Pause(ctx context.Context) error {
	if err := p.pause(); err != nil {
		return err
	}
	tasks := fmt.Sprintf("/proc/%d/task", p.PID())
	for p.moves(tasks) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s doesn't stop: %w", p.Name, ctx.Err())
		}
	}
	return nil
}

// moves says that one of its threads is not stopped, where the system tells.
func (p *Process) moves(tasks string) bool {
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
		stat, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "stat"))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z")
	})
}

// Resume lets it go on.
func (p *Process) Resume() error { return p.resume() }
