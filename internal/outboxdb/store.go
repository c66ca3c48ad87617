package outboxdb

import (
	"context"
	"embed"
	"sync/atomic"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

//go:embed sql
var sqlFiles embed.FS

// text is the SQL of a step.
func text(database, step string) string {
	b, err := sqlFiles.ReadFile("sql/" + database + "/" + step + ".sql")
	if err != nil {
		panic(err) // the file is part of this build
	}
	return string(b)
}

// Store is the outbox of one database. It is safe for concurrent use.
type Store struct {
	db     *bun.DB
	reader *bun.DB
	untold atomic.Bool // the server doesn't tell who it is
}

// New returns the store on a database: db for what writes, reader for what only
// looks.
func New(db, reader *bun.DB) *Store { return &Store{db: db, reader: reader} }

// Check returns an error that names the remedy unless the tables are at this
// build's version.
func (s *Store) Check(ctx context.Context) error { return Migrations().Check(ctx, s.reader) }

func (s *Store) sqlite() bool { return s.db.Dialect().Name() == dialect.SQLite }
