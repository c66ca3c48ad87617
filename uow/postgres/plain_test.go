package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/pipeline"
	"github.com/waybill-go/waybill/uow/postgres"
)

// F-52: statements that nobody has prepared are one transaction in one message, also
// behind a pooler; if one fails, none has happened.
func TestPlain_IsOneTransaction(t *testing.T) {
	_, behind := dbtest.Pooled(t)
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: behind, MaxConns: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	_, err = p.DB().ExecContext(t.Context(), "CREATE TABLE numbers (n integer PRIMARY KEY)")
	require.NoError(t, err)
	var read []int
	plain := func(statements ...pipeline.Statement) error {
		conn, err := p.DB().Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		return conn.Raw(func(dc any) error { return dc.(pipeline.PlainConn).Plain(t.Context(), statements...) })
	}
	add := func(n string) pipeline.Statement {
		return pipeline.Statement{Query: "INSERT INTO numbers VALUES ($1)", Values: []any{n}}
	}
	all := pipeline.Statement{Query: "SELECT n FROM numbers WHERE n = ANY ($1::integer[]) ORDER BY n", Values: []any{"{1,2,3,4}"}, Row: func(columns [][]byte) error {
		read = append(read, int(columns[0][3]))
		return nil
	}}
	require.NoError(t, plain(add("1"), add("2"), all))
	require.Equal(t, []int{1, 2}, read)
	require.ErrorContains(t, plain(add("3"), add("1"), add("4")), "duplicate key")
	read = nil
	require.NoError(t, plain(all, add("3")))
	require.Equal(t, []int{1, 2}, read)
}
