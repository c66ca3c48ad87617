package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/waybill-go/waybill/internal/lifeline"
)

// counting counts what its one connection prepares and closes again.
type counting struct {
	driver.Connector
	prepared, closed int
}

func (c *counting) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &countingConn{conn.(lifeline.FileConn), c}, nil
}

type countingConn struct {
	lifeline.FileConn
	of *counting
}

func (c *countingConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.FileConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	c.of.prepared++
	return &countingStmt{stmt.(sqliteStmt), c.of}, nil
}

type countingStmt struct {
	sqliteStmt
	of *counting
}

func (s *countingStmt) Close() error {
	s.of.closed++
	return s.sqliteStmt.Close()
}

// counted is a connection to a table of numbers from 1 to 3.
func counted(t *testing.T) (*sql.Conn, *counting) {
	t.Helper()
	connector, err := sqlite.NewConnector("file:" + filepath.Join(t.TempDir(), "test.db"))
	require.NoError(t, err)
	c := &counting{Connector: connector}
	db := sql.OpenDB(preparing{c})
	t.Cleanup(func() {
		require.NoError(t, db.Close())
		require.Equal(t, c.prepared, c.closed, "a closed connection keeps no statement")
	})
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	_, err = conn.ExecContext(t.Context(), "CREATE TABLE numbers (n INTEGER PRIMARY KEY); INSERT INTO numbers VALUES (1), (2), (3)")
	require.NoError(t, err)
	return conn, c
}

func numbers(t *testing.T, rows *sql.Rows) (all []int) {
	t.Helper()
	for rows.Next() {
		var n int
		require.NoError(t, rows.Scan(&n))
		all = append(all, n)
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	return all
}

const above = "SELECT n FROM numbers WHERE n > ? ORDER BY n"

func TestPrepared_AStatementIsPreparedOnce(t *testing.T) {
	conn, c := counted(t)
	for i := range 3 {
		rows, err := conn.QueryContext(t.Context(), above, i)
		require.NoError(t, err)
		require.Len(t, numbers(t, rows), 3-i)
		_, err = conn.ExecContext(t.Context(), "UPDATE numbers SET n = n WHERE n = ?", i)
		require.NoError(t, err)
	}
	require.Equal(t, 2, c.prepared)
}

func TestPrepared_ATextWithoutArgumentsIsKeptWhenItComesAgain(t *testing.T) {
	conn, c := counted(t)
	for i := range 2 * maxSeen {
		_, err := conn.ExecContext(t.Context(), fmt.Sprintf("UPDATE numbers SET n = n WHERE n = %d", 10+i))
		require.NoError(t, err)
	}
	require.Zero(t, c.prepared)
	for range 4 {
		_, err := conn.ExecContext(t.Context(), "UPDATE numbers SET n = n WHERE n = 1")
		require.NoError(t, err)
	}
	require.Equal(t, 1, c.prepared)
}

// What is read twice at once is two statements: one that began anew would move both.
func TestPrepared_TwoReadTheSameAtOnce(t *testing.T) {
	conn, c := counted(t)
	tx, err := conn.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	kept, err := tx.QueryContext(t.Context(), above, 2)
	require.NoError(t, err)
	require.Equal(t, []int{3}, numbers(t, kept))
	first, err := tx.QueryContext(t.Context(), above, 0)
	require.NoError(t, err)
	require.True(t, first.Next())
	second, err := tx.QueryContext(t.Context(), above, 1)
	require.NoError(t, err)
	require.Equal(t, []int{2, 3}, numbers(t, second))
	require.Equal(t, []int{2, 3}, numbers(t, first))
	require.NoError(t, tx.Commit())
	require.Equal(t, 2, c.prepared)
}

func TestPrepared_ABoundNumberIsKept(t *testing.T) {
	conn, c := counted(t)
	query := func(i int) string { return fmt.Sprintf("SELECT n + %d FROM numbers WHERE n = ?", i) }
	for i := range maxPrepared + 10 {
		rows, err := conn.QueryContext(t.Context(), query(i), 1)
		require.NoError(t, err)
		require.Equal(t, []int{1 + i}, numbers(t, rows))
	}
	require.Equal(t, maxPrepared+10, c.prepared)
	require.Equal(t, 10, c.closed, "what was used longest ago is closed")
	rows, err := conn.QueryContext(t.Context(), query(10), 1)
	require.NoError(t, err)
	require.Equal(t, []int{11}, numbers(t, rows))
	require.Equal(t, maxPrepared+10, c.prepared, "the others are kept")
	rows, err = conn.QueryContext(t.Context(), above+strings.Repeat(" ", maxPreparedText), 0)
	require.NoError(t, err)
	require.Len(t, numbers(t, rows), 3)
	require.Equal(t, maxPrepared+10, c.prepared, "a long text is not")
}

func TestPrepared_AfterAnErrorAndAChangeOfTheTable(t *testing.T) {
	conn, _ := counted(t)
	insert := func(n int) error {
		_, err := conn.ExecContext(t.Context(), "INSERT INTO numbers VALUES (?)", n)
		return err
	}
	require.NoError(t, insert(4))
	require.ErrorContains(t, insert(4), "UNIQUE constraint failed")
	require.NoError(t, insert(5))

	all := func() []string {
		rows, err := conn.QueryContext(t.Context(), "SELECT * FROM numbers WHERE n > ?", 4)
		require.NoError(t, err)
		defer func() { require.NoError(t, rows.Close()) }()
		names, err := rows.Columns()
		require.NoError(t, err)
		require.NoError(t, rows.Err())
		return names
	}
	require.Equal(t, []string{"n"}, all())
	_, err := conn.ExecContext(t.Context(), "ALTER TABLE numbers ADD COLUMN name TEXT")
	require.NoError(t, err)
	require.Equal(t, []string{"n", "name"}, all())
}
