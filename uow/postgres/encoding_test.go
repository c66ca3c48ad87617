package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// A database that can't keep every text is refused at once, and not with the first name that
// it has no letters for.
func TestOpen_Encoding(t *testing.T) {
	owner, _ := dbtest.Postgres(t)
	for encoding, refused := range map[string]bool{"LATIN1": true, "SQL_ASCII": false, "UTF8": false} {
		database := fmt.Sprintf("encoding_%d_%s", os.Getpid(), encoding)
		run := func(query string, args ...any) {
			_, err := owner.DB().ExecContext(context.WithoutCancel(t.Context()), query, args...)
			require.NoError(t, err)
		}
		run("CREATE DATABASE ? ENCODING ? LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", bun.Ident(database), encoding)
		t.Cleanup(func() { run("DROP DATABASE ?", bun.Ident(database)) })
		p, err := postgres.Open(t.Context(), postgres.Config{DSN: at(t, func(u *url.URL) { u.Path = "/" + database })})
		if !refused {
			require.NoError(t, err)
			require.NoError(t, p.Close())
			continue
		}
		for _, says := range []string{database, encoding, "ENCODING 'UTF8'", `provider "default": server `} {
			require.ErrorContains(t, err, says)
		}
	}
}
