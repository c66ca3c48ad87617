package failover_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
)

// cluster is a PostgreSQL server of the test's own, in a directory of its own.
type cluster struct {
	t      *testing.T
	dir    string
	port   string
	server *exec.Cmd
	hold   io.Closer // the server ends with it
}

// binaries is where the newest PostgreSQL here is.
func binaries(t *testing.T) string {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	require.NoError(t, err)
	if path, err := exec.LookPath("initdb"); err == nil && len(found) == 0 {
		found = append(found, path)
	}
	require.NotEmpty(t, found, "PostgreSQL's initdb is nowhere: scripts/services install postgres")
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// command is a program of PostgreSQL, which refuses to run as root.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binaries(t), name), args...)
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		uid, gid := postgresUser(t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}} //nolint:gosec // ids of users
	}
	return cmd
}

func postgresUser(t *testing.T) (uid, gid int) {
	u, err := user.Lookup("postgres")
	require.NoError(t, err)
	uid, err = strconv.Atoi(u.Uid)
	require.NoError(t, err)
	gid, err = strconv.Atoi(u.Gid)
	require.NoError(t, err)
	return uid, gid
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := command(t, name, args...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", cmd, out)
}

// newDirectory is one that PostgreSQL's user may use.
func newDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "waybill-failover-") //nolint:usetesting // PostgreSQL's user must get in there
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	if os.Getuid() == 0 {
		uid, gid := postgresUser(t)
		require.NoError(t, os.Chown(dir, uid, gid))
	}
	return dir
}

// inDirectory is a cluster that has a place and is still empty. It ends after all that the test
// makes later, also where the test starts it again: an engine is stopped while it is there.
func inDirectory(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: filepath.Join(newDirectory(t), "data"), port: freePort(t)}
	t.Cleanup(c.kill)
	return c
}

// newCluster makes an empty one, and starts it with these settings.
func newCluster(t *testing.T, settings ...string) *cluster {
	t.Helper()
	c := inDirectory(t)
	run(t, "initdb", "-D", c.dir, "-U", "waybill", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	c.start(settings...)
	run(t, "createdb", "-h", "127.0.0.1", "-p", c.port, "-U", "waybill", "waybill")
	return c
}

// copied is a copy of the cluster, by pg_basebackup, that isn't started yet.
func (c *cluster) copied(args ...string) *cluster {
	c.t.Helper()
	other := inDirectory(c.t)
	run(c.t, "pg_basebackup", append([]string{"-D", other.dir, "-h", "127.0.0.1", "-p", c.port, "-U", "waybill", "--no-sync", "-c", "fast"}, args...)...)
	return other
}

func (c *cluster) start(settings ...string) {
	c.t.Helper()
	args := []string{"-D", c.dir, "-p", c.port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	// The server ends when this process does, whatever the reason.
	server := command(c.t, "postgres", args...)
	c.server = exec.Command("sh", append([]string{"-c", `"$@" 2>/dev/null & cat >/dev/null; kill -QUIT $!; wait $!`, "sh", server.Path}, args...)...)
	c.server.SysProcAttr, c.server.Dir = server.SysProcAttr, server.Dir
	hold, err := c.server.StdinPipe()
	require.NoError(c.t, err)
	c.hold = hold
	require.NoError(c.t, c.server.Start())
	waittest.Until(c.t, func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "postmaster.pid")) // this server, and no other at its port
		return err == nil && command(c.t, "pg_isready", "-q", "-h", "127.0.0.1", "-p", c.port).Run() == nil
	}, "PostgreSQL on port %s", c.port)
}

// kill ends the server as a crash of its machine does.
func (c *cluster) kill() {
	if c.server != nil {
		_ = c.hold.Close() // an immediate shutdown
		_ = c.server.Wait()
		c.server = nil
	}
}

func (c *cluster) promote() {
	c.t.Helper()
	run(c.t, "pg_ctl", "promote", "-D", c.dir, "-w")
}

func (c *cluster) dsn() string { return dsn(c.port) }

func dsn(port string) string {
	return fmt.Sprintf("postgres://waybill@127.0.0.1:%s/waybill", port)
}

// ports that clusters of this process have, so that tests that run at the same time get different
// ones: a server that is stopped keeps its own.
var ports sync.Map

// freePort is below those that the system gives to connections, which would take it while its
// server is stopped.
func freePort(t *testing.T) string {
	for range 1000 {
		port := strconv.Itoa(10000 + rand.IntN(14000)) //nolint:gosec // no secret
		if _, taken := ports.LoadOrStore(port, true); taken {
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}
