package liveness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const nameVar = "LIVENESS_NAME"

// TestMain is also another process: it says its name, and waits to be killed.
func TestMain(m *testing.M) {
	if os.Getenv(nameVar) == "" {
		os.Exit(m.Run())
	}
	fmt.Println(Here().Name())
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// another starts a process, and returns its name.
func another(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), nameVar+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	var name string
	_, err = fmt.Fscanln(out, &name)
	require.NoError(t, err)
	return cmd, name
}

// N1: a process that runs is alive, also when it stands still; one that was killed is
// dead, also before its parent has asked.
func TestState_N1_AliveStoppedKilled(t *testing.T) {
	here := Here()
	cmd, name := another(t)
	require.Contains(t, name, fmt.Sprintf("-%d-%s.", cmd.Process.Pid, here.machine))
	require.Equal(t, Alive, here.State(name))
	require.Equal(t, Alive, here.State(name+"-17"), "a worker of it")
	require.Equal(t, Alive, here.State(here.Name()), "this one")

	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	await(t, cmd, "T")
	require.Equal(t, Alive, here.State(name), "it may go on")

	require.NoError(t, cmd.Process.Kill())
	await(t, cmd, "Z")
	require.Equal(t, Dead, here.State(name), "nobody has waited for it")
	require.Error(t, cmd.Wait())
	require.Equal(t, Dead, here.State(name+"-1"))
}

// await waits until a process is in a state of proc_pid_stat(5).
func await(t *testing.T, cmd *exec.Cmd, state string) {
	t.Helper()
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err)
		p, ok := parse(string(text))
		require.True(t, ok)
		if strings.Contains(string(text), ") "+state+" ") && (p.ended || state != "Z") {
			return
		}
	}
}

// N1: a number that another process has by now doesn't make the first one alive.
func TestState_N1_TheNumberIsAnothers(t *testing.T) {
	here := Here()
	began, ok := started(os.Getpid())
	require.True(t, ok)
	name := func(began uint64) string {
		return fmt.Sprintf("host-%d-%s.%d.00c0ffee-1", os.Getpid(), here.machine, began)
	}
	require.Equal(t, Alive, here.State(name(began)))
	require.Equal(t, Dead, here.State(name(began-1)))
}

// N1: nothing is said of a name that no process has given itself.
func TestState_N1_OfAnotherForm(t *testing.T) {
	here := Here()
	began, ok := started(os.Getpid())
	require.True(t, ok)
	name := fmt.Sprintf("a-1.b-%d-%s.%d.00c0ffee", os.Getpid(), here.machine, began)
	require.Equal(t, Alive, here.State(name), "a host may have numbers, points and dashes")
	for _, other := range []string{
		"", "-", ".", "host", here.machine, name[2:] + "x", name[:len(name)-1], name[:len(name)-1] + "g", name + "-", name + "-x", name + "-12345",
		fmt.Sprintf("%d-%s.%d.00c0ffee", os.Getpid(), here.machine, began), fmt.Sprintf("-%d-%s.%d.00c0ffee", os.Getpid(), here.machine, began),
		fmt.Sprintf("host-0-%s.%d.00c0ffee", here.machine, began), fmt.Sprintf("host-+%d-%s.%d.00c0ffee", os.Getpid(), here.machine, began),
		fmt.Sprintf("host-%d-%s.x.00c0ffee", os.Getpid(), here.machine), fmt.Sprintf("host-%d-%s.00c0ffee", os.Getpid(), here.machine),
		fmt.Sprintf("host-99999999999-%s.%d.00c0ffee", here.machine, began),
	} {
		require.Equal(t, Unknown, here.State(other), "%q", other)
	}
}

// N1: nothing is said of a process of another host, of another container or of before
// the last start of the system, nor by one that can't tell.
func TestState_N1_OfAnotherHost(t *testing.T) {
	cmd, name := another(t)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Equal(t, Dead, Here().State(name))
	require.Equal(t, Unknown, Host{name: Here().name, machine: "0123456789ab"}.State(name))
	require.Equal(t, Unknown, Host{name: Here().name}.State(name))
	require.NotContains(t, Host{name: "h"}.Name(), Here().machine)
	require.NotEqual(t, machine("a"), machine("b"), "clones of a virtual machine")
}

// N1: each start of a system, each container and each clone of a virtual machine is a
// machine of its own; and where /proc is that of others, nothing is known.
func TestMachine_N1_EachIsItsOwn(t *testing.T) {
	mount := func(self, boot, pids, times string) string {
		proc := t.TempDir()
		for _, dir := range []string{"4711/ns", "sys/kernel/random"} {
			require.NoError(t, os.MkdirAll(filepath.Join(proc, dir), 0o700))
		}
		for path, to := range map[string]string{"self": self, "4711/ns/pid": pids, "4711/ns/time": times} {
			if to != "" {
				require.NoError(t, os.Symlink(to, filepath.Join(proc, path)))
			}
		}
		if boot != "" {
			require.NoError(t, os.WriteFile(filepath.Join(proc, "sys/kernel/random/boot_id"), []byte(boot+"\n"), 0o600))
		}
		return machineBy(proc, 4711, "a")
	}
	first := mount("4711", "b1", "pid:[1]", "time:[1]")
	require.Regexp(t, `^[0-9a-f]{12}$`, first)
	require.Equal(t, first, mount("4711", "b1", "pid:[1]", "time:[1]"))
	for name, other := range map[string]string{
		"after the system's next start": mount("4711", "b2", "pid:[1]", "time:[1]"),
		"in another container":          mount("4711", "b1", "pid:[2]", "time:[1]"),
		"by another clock":              mount("4711", "b1", "pid:[1]", "time:[2]"),
		"of an old Linux":               mount("4711", "b1", "pid:[1]", ""),
	} {
		require.Regexp(t, `^[0-9a-f]{12}$`, other, name)
		require.NotEqual(t, first, other, name)
	}
	for name, none := range map[string]string{
		"/proc is another container's": mount("815", "b1", "pid:[1]", "time:[1]"),
		"there is no /proc":            mount("", "b1", "pid:[1]", "time:[1]"),
		"of no known start":            mount("4711", "", "pid:[1]", "time:[1]"),
		"of no known container":        mount("4711", "b1", "", "time:[1]"),
	} {
		require.Empty(t, none, name)
	}
}

func TestState_Garbage(t *testing.T) {
	here := Here()
	m := here.machine
	for _, name := range []string{
		"", "-", "w1", "host-1-a-1", "host-4711-00c0ffee-1", "host-4711-" + m, m, "-1-" + m + ".1.00c0ffee",
		"host-0-" + m + ".1.00c0ffee", "host--1-" + m + ".1.00c0ffe", "host-99999999999-" + m + ".1.00c0ffee",
		"host-1-" + m + ".99999999999999999999999.00c0ffee", "host-1-" + m + ".1.00c0ffee-1-1", "host-1-" + m + ".1.00c0ffee-x",
		"host-1-" + m + ".1.00c0ffee\n", "host-1-" + m + "-1-00c0ffee", "host-1-" + strings.ToUpper(m) + "x.1.00c0ffee",
	} {
		require.Equal(t, Unknown, here.State(name), "%q", name)
	}
}

func TestName_NeedsNoQuoting(t *testing.T) {
	h := Host{name: "o'brien's höst.local-1", machine: Here().machine}
	first, second := h.Name(), h.Name()
	require.Regexp(t, `^[a-zA-Z0-9._-]+$`, first)
	require.NotEqual(t, first, second)
	require.Equal(t, Alive, h.State(first))
	require.Equal(t, first, Process(first+"-12"))
	require.Equal(t, "w1", Process("w1"))
}

func TestParse_OfAnyProgram(t *testing.T) {
	stat := func(name, state string, threads int) string {
		return fmt.Sprintf("17 (%s) %s 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 %d 0 4711 1 1", name, state, threads)
	}
	for _, name := range []string{"a", "a b", ") R 1", "(", ""} {
		p, ok := parse(stat(name, "S", 3))
		require.True(t, ok)
		require.Equal(t, process{began: 4711}, p, name)
	}
	p, _ := parse(stat("a", "Z", 1))
	require.True(t, p.ended)
	p, _ = parse(stat("a", "Z", 2))
	require.False(t, p.ended, "its other threads run")
	for _, text := range []string{"", "17 (a) S 1", stat("a", "S", 1)[:40], strings.Replace(stat("a", "S", 1), "4711", "x", 1)} {
		_, ok := parse(text)
		require.False(t, ok, text)
	}
}
