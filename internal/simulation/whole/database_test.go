package whole

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/timerdb"
	managers "github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	sqliteprovider "github.com/waybill-go/waybill/uow/sqlite"
)

// raw is a connection of the driver.
type raw interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

// database is what all processes share: one connection on which they write, one after the
// other as SQLite has it, and one on which they read what is committed.
type database struct {
	writer, reader raw
	holder         *transaction // that has begun, and not ended
}

// transaction is one of a process.
type transaction struct{ p *process }

// template is a database with its tables, as a file.
func template(t interface {
	require.TestingT
	TempDir() string
},
) []byte {
	path := filepath.Join(t.TempDir(), "template.db")
	ctx := context.Background()
	p, err := sqliteprovider.Open(ctx, sqliteprovider.Config{Path: path})
	require.NoError(t, err)
	require.NoError(t, outboxdb.Migrate(ctx, p.DB(), partitions))
	require.NoError(t, repository.Migrations().Up(ctx, p.DB()))
	require.NoError(t, subscription.Migrations().Up(ctx, p.DB()))
	require.NoError(t, command.Migrations().Up(ctx, p.DB()))
	require.NoError(t, timerdb.Migrations().Up(ctx, p.DB()))
	require.NoError(t, managers.Migrations().Up(ctx, p.DB()))
	require.NoError(t, addAlarms(ctx, p))
	_, err = p.DB().ExecContext(ctx, "CREATE TABLE effects (n INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT NOT NULL, account TEXT NOT NULL, number INTEGER NOT NULL)")
	require.NoError(t, err)
	_, err = p.DB().ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	require.NoError(t, err)
	require.NoError(t, p.Close())
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	return file
}

// openDatabase opens a copy of the template.
func openDatabase(dir string, template []byte) (*database, error) {
	path := filepath.Join(dir, "whole.db")
	for _, rest := range []string{"-wal", "-shm"} {
		_ = os.Remove(path + rest)
	}
	if err := os.WriteFile(path, template, 0o600); err != nil {
		return nil, err
	}
	open := func(more string) (raw, error) {
		connector, err := sqlite.NewConnector("file:" + path + "?_synchronous=OFF&_journal_mode=WAL&_foreign_keys=on" + more)
		if err != nil {
			return nil, err
		}
		conn, err := connector.Connect(context.Background())
		if err != nil {
			return nil, err
		}
		return conn.(raw), nil
	}
	writer, err := open("")
	if err != nil {
		return nil, err
	}
	reader, err := open("&_query_only=on")
	return &database{writer: writer, reader: reader}, err
}

func (d *database) close() error { return errors.Join(d.reader.Close(), d.writer.Close()) }

// execute is a statement without rows.
func execute(c raw, query string, args ...driver.NamedValue) (driver.Result, error) {
	return c.ExecContext(context.Background(), query, args)
}

// query reads all rows of a statement at once: nobody holds a snapshot.
func query(c raw, query string, args ...driver.NamedValue) (*rows, error) {
	found, err := c.QueryContext(context.Background(), query, args)
	if err != nil {
		return nil, err
	}
	all := &rows{columns: found.Columns()}
	for {
		row := make([]driver.Value, len(all.columns))
		switch err := found.Next(row); {
		case errors.Is(err, io.EOF):
			return all, found.Close()
		case err != nil:
			return nil, errors.Join(err, found.Close())
		}
		for i, v := range row {
			if b, ok := v.([]byte); ok {
				row[i] = append([]byte(nil), b...)
			}
		}
		all.rows = append(all.rows, row)
	}
}

// rows implements [driver.Rows] with what was read.
type rows struct {
	columns []string
	rows    [][]driver.Value
}

func (r *rows) Columns() []string { return r.columns }
func (r *rows) Close() error      { return nil }

func (r *rows) Next(into []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(into, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}

// reads says whether a statement only reads.
func reads(query string) bool {
	text := strings.ToUpper(strings.TrimSpace(query))
	return (strings.HasPrefix(text, "SELECT") || strings.HasPrefix(text, "WITH")) &&
		!strings.Contains(text, "INSERT") && !strings.Contains(text, "UPDATE") && !strings.Contains(text, "DELETE")
}
