package sqlite_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/uow"
)

// F-63: a file that can't grow refuses a unit, of which nothing is left, and takes the next one when there is room.
func TestFull_F_63_NothingIsHalfStored(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := p.DB().ExecContext(t.Context(), "CREATE TABLE things (id text PRIMARY KEY, body text)")
	require.NoError(t, err)
	save := func(id, body string) error {
		s := p.Session()
		if err := s.Commit(t.Context(), []uow.Statement{
			{Query: bun.SafeQuery("INSERT INTO things VALUES (?, '')", id), Rows: -1},
			{Query: bun.SafeQuery("INSERT INTO things VALUES (?, ?)", id+" and more", body), Rows: -1},
		}); err != nil {
			require.NoError(t, s.Rollback(t.Context()))
			return err
		}
		return nil
	}
	ids := func() (all []string) {
		require.NoError(t, p.Reader().NewRaw("SELECT id FROM things ORDER BY id").Scan(t.Context(), &all))
		return all
	}
	room := func(pages string) { // of the one connection that writes
		_, err := p.DB().ExecContext(t.Context(), "PRAGMA max_page_count = "+pages)
		require.NoError(t, err)
	}
	room("10")
	require.NoError(t, save("a", "small"))
	err = save("b", strings.Repeat("x", 1<<20))
	require.ErrorContains(t, err, "full (13)")
	require.ErrorContains(t, err, `provider "default": `)
	require.ErrorContains(t, err, "test.db can't grow, as its disk is full, or a quota is used up: make room")
	require.Equal(t, []string{"a", "a and more"}, ids())
	require.NoError(t, save("c", "small"))
	room("100000")
	require.NoError(t, save("b", strings.Repeat("x", 1<<20)))
	require.Equal(t, []string{"a", "a and more", "b", "b and more", "c", "c and more"}, ids())
}
