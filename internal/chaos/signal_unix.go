//go:build unix

package chaos

import (
	"os/exec"
	"syscall"
)

// canPause says that processes can be stopped and resumed here.
const canPause = true

func (p *Process) pause() error  { return p.Signal(syscall.SIGSTOP) }
func (p *Process) resume() error { return p.Signal(syscall.SIGCONT) }

// terminate asks for a clean end.
func (p *Process) terminate() error { return p.Signal(syscall.SIGTERM) }

// detach keeps an interrupt from the terminal away from a process: who started it ends it.
func detach(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}
