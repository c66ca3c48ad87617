package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/porttest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// ownServer is a PostgreSQL of this package's own: tests change its settings, and
// keep others from removing dead rows. Tests that use it don't run side by side.
var ownServer struct {
	once sync.Once
	port int
	err  error
	dir  string
	hold io.Closer
	wait func() error
}

var databases atomic.Int64

// start makes and starts it.
func start() (err error) {
	s := &ownServer
	binaries, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if path, look := exec.LookPath("postgres"); look == nil {
		binaries = append(binaries, path)
	}
	if err != nil || len(binaries) == 0 {
		return errors.New("PostgreSQL's binaries are missing: run scripts/services up, or install them (Debian: apt-get install postgresql)")
	}
	bin := filepath.Dir(binaries[len(binaries)-1])
	if s.dir, err = os.MkdirTemp("", "doctor"); err != nil {
		return err
	}
	var as []string
	if os.Getuid() == 0 { // which PostgreSQL refuses
		account, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, uerr := strconv.Atoi(account.Uid)
		gid, gerr := strconv.Atoi(account.Gid)
		if err := errors.Join(uerr, gerr, os.Chown(s.dir, uid, gid)); err != nil {
			return err
		}
		as = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"}
	}
	data := filepath.Join(s.dir, "data")
	command := func(args ...string) *exec.Cmd {
		args = append(append([]string{}, as...), args...)
		c := exec.Command(args[0], args[1:]...)
		c.Dir = s.dir
		return c
	}
	if text, err := command(filepath.Join(bin, "initdb"), "-D", data, "-U", "doctor", "-A", "trust", "-E", "UTF8", "--no-sync").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, text)
	}
	s.port = porttest.Free()
	// It ends when this process does, whatever the reason.
	c := command("sh", "-c", `"$@" >"$0/log" 2>&1 </dev/null & cat >/dev/null; kill -QUIT $!; wait`, s.dir, filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=30", "-c", "max_prepared_transactions=2",
		"-c", "idle_in_transaction_session_timeout=5min", "-c", "shared_buffers=16MB")
	hold, err := c.StdinPipe()
	if err != nil {
		return err
	}
	s.hold, s.wait = hold, c.Wait
	return c.Start()
}

func stopServer() {
	if ownServer.wait != nil {
		_ = ownServer.hold.Close()
		_ = ownServer.wait()
	}
	_ = os.RemoveAll(ownServer.dir)
}

func dsn(database string) string {
	return fmt.Sprintf("postgres://doctor@127.0.0.1:%d/%s?sslmode=disable&application_name=the%%20doctor", ownServer.port, database)
}

// open connects to a database of the server.
func open(t *testing.T, database string) uow.Provider {
	t.Helper()
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn(database), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// newDatabase is one of the server's.
func newDatabase(t *testing.T) (name string) {
	t.Helper()
	ownServer.once.Do(func() { ownServer.err = start() })
	require.NoError(t, ownServer.err)
	waittest.Until(t, func() bool {
		p, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn("postgres")})
		if err == nil {
			err = p.Close()
		}
		return err == nil
	})
	admin := open(t, "postgres")
	name = fmt.Sprintf("doctor_%d", databases.Add(1))
	_, err := admin.DB().ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	// Dropping the last one took a checkpoint.
	_, err = admin.DB().ExecContext(t.Context(), "SELECT pg_stat_reset_shared(CASE WHEN current_setting('server_version_num')::int < 170000 THEN 'bgwriter' ELSE 'checkpointer' END)")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.DB().ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	return name
}

func openPostgres(t *testing.T) uow.Provider {
	t.Helper()
	return open(t, newDatabase(t))
}
