package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// S11: no command says a password, whatever it can't open or understand.
func TestWaybill_S11_NothingSaysAPassword(t *testing.T) {
	const password = "hunter22hunter"
	for name, dsn := range map[string]string{
		"nobody answers": "postgres://ann:" + password + "@127.0.0.1:1/ordering",
		"no URL":         "postgres://ann:" + password + "@127.0.0.1:port/ordering",
		"a raw slash":    "postgres://ann:" + password + "/x@127.0.0.1:1/ordering",
		"another scheme": "mysql://ann:" + password + "@127.0.0.1:1/ordering",
		"pairs":          "host=127.0.0.1 port=1 user=ann password=" + password,
	} {
		file := filepath.Join(t.TempDir(), "waybill.yaml")
		text := fmt.Sprintf("domain: ordering\nproviders: {default: {dialect: postgres, dsn: %q}}\nserver: {token: %q}\n", dsn, password+password)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		for _, where := range [][]string{{"--dsn", dsn}, {"--config", file}} {
			for _, command := range [][]string{{"doctor"}, {"--json", "doctor"}, {"outbox", "stats"}, {"observatory"}, {"migrate"}} {
				r := waybill(t, append(where, command...)...)
				require.NotZero(t, r.code, "%s: %v", name, command)
				require.NotEmpty(t, r.stdout+r.stderr)
				require.NotContains(t, r.stdout+r.stderr, password[:8], "%s: %v", name, command)
			}
		}
	}
}
