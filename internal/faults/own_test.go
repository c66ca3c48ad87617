package faults

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownKafka is a Kafka of this package's own, to be killed and stopped. Tests
// that use it don't run side by side.
var ownKafka server

const services = "../../scripts/services"

type server struct {
	mu     sync.Mutex
	dir    string
	reaper *exec.Cmd
	hold   io.Closer
}

// up starts the server unless it runs, on the port that it had, and returns its
// address.
func (s *server) up(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		s.dir = filepath.Join(scratch, "own")
		// The server survives whoever started it, but not this: it ends when this
		// process does, whatever the reason. One that is just being started is
		// waited for.
		s.reaper = exec.Command("sh", "-c", `cat >/dev/null; kill -9 "$(cat "$0/.services/kafka/pid")"; WAYBILL_SERVICES=$0 "$1" down kafka; rm -rf "$0"`, s.dir, services)
		hold, err := s.reaper.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, s.reaper.Start())
		s.hold = hold
	}
	cmd := exec.Command(services, "up", "kafka")
	cmd.Env = append(os.Environ(), "WAYBILL_SERVICES="+s.dir)
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		require.NoError(t, err, "%s", failed.Stderr)
	}
	require.NoError(t, err)
	_, address, ok := strings.Cut(strings.TrimSpace(string(out)), "export WAYBILL_KAFKA=")
	require.True(t, ok, "%s", out)
	return address
}

// signal sends the server's process a signal.
func (s *server) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, ".services", "kafka", "pid"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, sig))
}

// end stops the server for good.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reaper != nil {
		_ = s.hold.Close()
		_ = s.reaper.Wait() // it has said what it had to say
	}
}
