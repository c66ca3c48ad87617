package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file is read, and then its settings are ones that an engine takes, or it is refused with
// an error that says so.
func FuzzParse(f *testing.F) {
	f.Add(smallest)
	f.Add("outbox: {lease: 10s, retry: {jitter: .nan}, external_brokers: [partner, {broker: partner, topics: {a: b}}]}")
	f.Add("providers: &a {default: *a}")
	f.Add("server: {tokens: [{name: a, role: read, token: 1234567890123456}, [1]]}\n---\n")
	f.Add("providers:\n  default:\n\t- ? {a: b}")
	sample, err := os.ReadFile(filepath.Join("testdata", "waybill.yaml"))
	require.NoError(f, err)
	f.Add(string(sample))
	path := filepath.Join(f.TempDir(), "waybill.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		file, err := Parse(path)
		if err != nil {
			require.ErrorContains(t, err, "config: ")
			return
		}
		require.NoError(t, file.Outbox.Check())
		require.NoError(t, file.Server.Check())
		require.NotEmpty(t, file.providers)
	})
}
