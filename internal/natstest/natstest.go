// Package natstest runs NATS servers with a configuration of a test's own. They end with the test.
package natstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// Guide is the configuration of users that the guide to NATS in production shows, for a
// test that runs two directories below the project's.
func Guide(t testing.TB) string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/guides/nats-in-production.md")
	require.NoError(t, err)
	_, conf, found := strings.Cut(string(guide), "```text\nauthorization {")
	require.True(t, found)
	conf, _, _ = strings.Cut(conf, "```")
	return "authorization {" + conf
}

// Serve runs a server with JetStream and such a configuration, and returns its address for
// each user of it, whose password is the guide's.
func Serve(t testing.TB, conf string) (url func(user string) string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte("listen: \"127.0.0.1:-1\"\njetstream { store_dir: \""+dir+"\" }\n"+conf), 0o600))
	options, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return func(user string) string {
		return strings.Replace(s.ClientURL(), "nats://", "nats://"+user+":change-me@", 1)
	}
}
