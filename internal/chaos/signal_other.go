//go:build !unix

package chaos

import (
	"errors"
	"os/exec"
)

// canPause says that processes can be stopped and resumed here.
const canPause = false

func (p *Process) pause() error  { return errors.ErrUnsupported }
func (p *Process) resume() error { return errors.ErrUnsupported }

// terminate asks for a clean end, which a process can't be asked for here.
func (p *Process) terminate() error { return p.cmd.Process.Kill() }

func detach(*exec.Cmd) {}
