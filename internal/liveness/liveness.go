// Package liveness gives processes names by which others on the same host can
// tell whether they are alive. It errs on one side only: what it can't prove is
// not known.
package liveness

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// State is what one process knows of another.
type State int

const (
	// Unknown: it is of another host or container, or of a system where nobody can
	// tell.
	Unknown State = iota
	// Alive: it runs on this host, or is frozen there.
	Alive
	// Dead: it ran on this host, and has ended.
	Dead
)

// String is "unknown", "alive" or "dead".
func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	default:
		return "unknown"
	}
}

// Host is where a process runs, as far as it can see others there.
type Host struct {
	name string
	// machine is the same for those processes only that see each other's numbers
	// and times of start, until the host starts anew; "" if this one can't tell.
	machine string
}

// Here is where this process runs.
func Here() Host {
	host, _ := os.Hostname()
	return Host{name: cmp.Or(host, "unknown"), machine: machine(host)}
}

// Name names this start of this process on this host, each time differently, in
// letters that SQL needs no quoting for: host, number, and a part that is unique.
func (h Host) Name() string {
	host := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, h.name)
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails, says its documentation
	pid := os.Getpid()
	if began, ok := started(pid); ok && h.machine != "" {
		return fmt.Sprintf("%s-%d-%s.%d.%s", host, pid, h.machine, began, hex.EncodeToString(random[:]))
	}
	return fmt.Sprintf("%s-%d-%s", host, pid, hex.EncodeToString(random[:]))
}

// State says how the process is that has a name, or whose worker has it. Members ask it of
// each other ten times a second, so it needs no regular expression.
func (h Host) State(name string) State {
	// Host, process, machine, time of start, and what makes it unique; the number of a worker
	// may follow. A host may have any of that, so it is read from its end.
	front, unique, ok := cutLast(Process(name), '.')
	if !ok || len(unique) != 8 || strings.Trim(unique, "0123456789abcdef") != "" || h.machine == "" {
		return Unknown
	}
	front, start, ok1 := cutLast(front, '.')
	front, machine, ok2 := cutLast(front, '-')
	host, number, ok3 := cutLast(front, '-')
	if !ok1 || !ok2 || !ok3 || host == "" || machine != h.machine {
		return Unknown
	}
	pid, err := strconv.ParseUint(number, 10, 31)
	began, err2 := strconv.ParseUint(start, 10, 64)
	if err != nil || err2 != nil || pid < 1 {
		return Unknown
	}
	return state(int(pid), began)
}

// cutLast cuts at the last of a letter.
func cutLast(text string, at byte) (before, after string, found bool) {
	i := strings.LastIndexByte(text, at)
	if i < 0 {
		return "", "", false
	}
	return text[:i], text[i+1:], true
}

// Process is a worker's name without the worker's number.
func Process(worker string) string {
	if i := strings.LastIndexByte(worker, '-'); i > 0 {
		if _, err := strconv.ParseUint(worker[i+1:], 10, 32); err == nil && len(worker)-i <= 5 {
			return worker[:i]
		}
	}
	return worker
}
