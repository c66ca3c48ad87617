// Package servertest runs servers that a test may stop.
package servertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Server is one of scripts/services, with a directory of its own.
type Server struct {
	Name string // As scripts/services has it.
	URL  string
	dir  string
}

// Start starts a server, which ends with the test.
func Start(t testing.TB, name string) *Server {
	t.Helper()
	s := &Server{Name: name, dir: t.TempDir()}
	t.Cleanup(func() { s.services(t, "down") })
	s.up(t)
	return s
}

var export = regexp.MustCompile(`=(\S+)`)

func (s *Server) up(t testing.TB) {
	t.Helper()
	m := export.FindStringSubmatch(s.services(t, "up"))
	require.NotNil(t, m)
	s.URL = m[1]
}

// Kill ends it as a crash does. It comes back where it was.
func (s *Server) Kill(t testing.TB) (start func()) {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(s.dir, ".services", s.Name, "pid"))
	require.NoError(t, err)
	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(number, syscall.SIGKILL))
	return func() { s.up(t) }
}

func (s *Server) services(t testing.TB, action string) string {
	t.Helper()
	program, err := filepath.Abs("scripts/services")
	require.NoError(t, err)
	for _, err := os.Stat(program); err != nil; _, err = os.Stat(program) { // above the test's directory
		up := filepath.Join(filepath.Dir(program), "..", "..", "scripts", "services")
		require.NotEqual(t, up, program, "scripts/services is nowhere above the test's directory")
		program = up
	}
	cmd := exec.CommandContext(context.Background(), program, action, s.Name)
	cmd.Env = append(os.Environ(), "WAYBILL_SERVICES="+s.dir)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	return string(out)
}
