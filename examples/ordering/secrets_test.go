package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// S11: whatever can't be opened or understood, nothing that the program says of it
// has a password in it.
func TestInputs_S11_NothingSaysAPassword(t *testing.T) {
	t.Parallel()
	const password = "hunter22hunter"
	server, err := url.Parse(os.Getenv("WAYBILL_POSTGRES"))
	require.NoError(t, err)
	require.NotEmpty(t, server.Host, `run scripts/test, or eval "$(scripts/services up)"`)
	const sqlite, nats = "{dialect: sqlite, path: ./ordering.db}", "{kind: nats, embedded: ./nats}"
	postgres := func(dsn string) [2]string { return [2]string{sqlite, fmt.Sprintf("{dialect: postgres, dsn: %q}", dsn)} }
	natsAt := func(url string) [2]string { return [2]string{nats, fmt.Sprintf("{kind: nats, url: %q}", url)} }
	for name, c := range map[string][2]string{
		"a PostgreSQL that isn't there":  postgres("postgres://ann:" + password + "@127.0.0.1:1/ordering"),
		"a user that PostgreSQL refuses": postgres("postgres://nobody-at-all:" + password + "@" + server.Host + "/ordering"),
		"a DSN that is none":             postgres("postgres://ann:" + password + "@127.0.0.1:port/ordering"),
		"a DSN with a raw slash":         postgres("postgres://ann:" + password + "/x@127.0.0.1:5432/ordering"),
		"a DSN of pairs":                 postgres("host=127.0.0.1 port=1 user=ann password=" + password),
		"a DSN of wrong pairs":           postgres("host=127.0.0.1 port=x user=ann password='" + password),
		"a NATS that isn't there":        natsAt("nats://ann:" + password + "@127.0.0.1:1"),
		"a token and no NATS":            natsAt("nats://" + password + "@127.0.0.1:1"),
		"a NATS address that is none":    natsAt("nats://ann:" + password + "@127.0.0.1:port"),
		"a NATS address with a space":    natsAt("nats://ann:" + password + " x@127.0.0.1:4222"),
		"NATS addresses, one of them":    natsAt("nats://127.0.0.1:1,nats://ann:" + password + "@[::1"),
		"a token that is too short":      {`server: {addr: "127.0.0.1:0"}`, `server: {addr: "127.0.0.1:0", token: ` + password + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.Contains(t, sqliteAndNATS, c[0])
			write(t, dir, "waybill.yaml", strings.Replace(sqliteAndNATS, c[0], c[1], 1))
			f := runIn(t, dir, "serve")
			require.Equal(t, 1, f.code, f.stderr)
			require.NotEmpty(t, f.stderr)
			require.NotContains(t, f.stdout+f.stderr, password[:8])
		})
	}
}
