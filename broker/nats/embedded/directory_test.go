//go:build unix

package embedded_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats/embedded"
)

// What is published after somebody has removed or replaced the directory under the server would be
// gone with the process: it is refused, until the directory is back.
func TestPublishNeedsTheDirectory(t *testing.T) {
	for name, replace := range map[string]func(dir string) error{
		"emptied": func(dir string) error { return os.Rename(filepath.Join(dir, "jetstream"), dir+".kept") },
		"replaced": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".kept"), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
		},
		"removed": os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			b := open(t, embedded.Config{Dir: dir})
			require.NoError(t, b.EnsureTopics(t.Context(), "ordering.order"))
			publish := func(n int) error { return b.Publish(t.Context(), []broker.Message{message("a", n)}) }
			require.NoError(t, publish(1))
			require.NoError(t, replace(dir))
			err := publish(2)
			require.ErrorContains(t, err, dir+" was removed, replaced or emptied while the server has it open")
			require.Equal(t, broker.Unavailable, broker.ClassOf(err))
			require.Equal(t, broker.ScopeBroker, broker.ScopeOf(err))
			if name == "emptied" {
				require.NoError(t, os.Rename(dir+".kept", filepath.Join(dir, "jetstream")))
				require.NoError(t, publish(2))
			}
		})
	}
}
