package liveness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// machine is a hash of all that must be equal for one process to judge another:
// the start of the system, the namespaces that numbers and times of processes are
// of, and the host's name, which tells clones of a virtual machine apart.
func machine(host string) string { return machineBy("/proc", os.Getpid(), host) }

func machineBy(proc string, pid int, host string) string {
	// Where /proc is another namespace's, it shows the wrong processes.
	if self, err := os.Readlink(proc + "/self"); err != nil || self != strconv.Itoa(pid) {
		return ""
	}
	boot, err := os.ReadFile(proc + "/sys/kernel/random/boot_id")
	if err != nil || len(bytes.TrimSpace(boot)) == 0 {
		return ""
	}
	processes, err := os.Readlink(fmt.Sprintf("%s/%d/ns/pid", proc, pid))
	if err != nil {
		return ""
	}
	times, err := os.Readlink(fmt.Sprintf("%s/%d/ns/time", proc, pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // Linux before 5.6 has none
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", bytes.TrimSpace(boot), processes, times, host))
	return hex.EncodeToString(sum[:6])
}

// state says how the process is that had a number and started at a time.
func state(pid int, began uint64) State {
	// Signal 0 is never sent. Unlike /proc, which may hide processes of other users,
	// it says for certain that there is none.
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return Dead
	}
	p, ok := read(pid)
	switch {
	case !ok:
		return Unknown
	case p.began != began || p.ended:
		return Dead
	}
	return Alive
}

// started is when a process started, in ticks since the system did.
func started(pid int) (ticks uint64, ok bool) {
	p, ok := read(pid)
	return p.began, ok
}

// process is what /proc says of one.
type process struct {
	began uint64
	ended bool // nobody has asked yet how
}

func read(pid int) (p process, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	return parse(string(text))
}

// parse reads what proc_pid_stat(5) describes. The name of the program, in brackets,
// may hold anything.
func parse(stat string) (p process, ok bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from the third on
	if len(fields) < 20 {
		return p, false
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return p, false
	}
	p.began, err = strconv.ParseUint(fields[19], 10, 64)
	// One whose first thread has ended goes on with the others.
	p.ended = strings.Contains("ZXx", fields[0]) && threads <= 1
	return p, err == nil
}
