package waybilltest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/lifeline"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// database is a context's provider. What is behind it is built again for each process.
type database struct {
	k       *Kit
	context string
	now     atomic.Pointer[opened]
}

// opened is a database as a process has it.
type opened struct {
	uow.Provider
	line *lifeline.Line
	by   *process
}

func (db *database) Name() string               { return db.context }
func (db *database) DB() *bun.DB                { return db.now.Load().DB() }
func (db *database) Reader() *bun.DB            { return db.now.Load().Reader() }
func (db *database) Retryable(err error) bool   { return db.now.Load().Retryable(err) }
func (db *database) Signal(pokes []outbox.Poke) { db.now.Load().Signal(pokes) }
func (db *database) Close() error               { return db.now.Load().Close() }

func (db *database) Watch(ctx context.Context, hear func(pokes []outbox.Poke)) error {
	return db.now.Load().Watch(ctx, hear)
}

func (db *database) Session() uow.Session {
	o := db.now.Load()
	if db.k.points == nil {
		return o.Session()
	}
	return &session{o.Session(), o.by}
}

// TestClock is what the module's packages find the clock by.
func (db *database) TestClock() *testclock.Clock { return db.k.clock }

// MaxConns is what an engine asks for.
func (db *database) MaxConns() int {
	if p, ok := db.now.Load().Provider.(interface{ MaxConns() int }); ok {
		return p.MaxConns()
	}
	return math.MaxInt
}

// open opens the database for a process.
func (db *database) open(p *process) error {
	k, o := db.k, &opened{line: lifeline.New(), by: p}
	ctx := lifeline.With(k.t.Context(), o.line)
	var err error
	if k.dsn == "" {
		o.Provider, err = sqlite.Open(ctx, sqlite.Config{Name: db.context, Path: db.path()})
	} else {
		schema := k.run + "_" + db.context
		k.mu.Lock()
		k.schemas[schema] = true
		k.mu.Unlock()
		o.Provider, err = postgres.Open(ctx, postgres.Config{Name: db.context, DSN: k.dsn, Schema: schema})
	}
	if err != nil {
		return err
	}
	db.now.Store(o)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.databases = append(p.databases, o)
	return nil
}

// path is the SQLite file.
func (db *database) path() string { return filepath.Join(db.k.dir, db.context+".db") }

// templates are SQLite files with tables and nothing in them. Kits that are made one
// after the other, of the same contexts, copy them: to migrate takes longer.
type templates struct{ dir string }

func (t *templates) path(db *database) string { return filepath.Join(t.dir, db.context+".db") }

// copyTo makes db's file of a template, if there is one and the file is not there yet.
func (t *templates) copyTo(db *database) error {
	if t == nil || db.k.dsn != "" {
		return nil
	}
	if _, err := os.Stat(db.path()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := os.ReadFile(t.path(db))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(db.path(), content, 0o600)
}

// keep makes a template of db, which has just been migrated, unless there is one.
func (t *templates) keep(ctx context.Context, db *database) error {
	if t == nil || db.k.dsn != "" {
		return nil
	}
	if _, err := os.Stat(t.path(db)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := db.DB().ExecContext(ctx, "VACUUM INTO ?", t.path(db))
	return err
}

// reopen gives p the databases of units that a process had which was killed.
func (p *process) reopen() error {
	for _, m := range p.units {
		for _, provider := range m.Providers() {
			if db, ok := provider.(*database); ok && db.now.Load().by != p {
				if err := db.open(p); err != nil {
					return err
				}
			}
			if err := lapse(p.k.t.Context(), provider, !m.OutboxDisabled()); err != nil {
				return err
			}
		}
	}
	return nil
}

// lapse ends what a killed process has left, as time would: its leases, and that it has
// dead letters in hand.
func lapse(ctx context.Context, p uow.Provider, outbox bool) error {
	ends := map[string]string{"dead_letters": "taken_until", "projection_positions": "locked_until"}
	if outbox {
		ends["outbox_members"] = "until"
	}
	past := bun.Safe(dbtime.In(p.DB().Dialect(), -time.Second))
	for table, column := range ends {
		if _, err := p.DB().NewRaw("UPDATE ? SET ? = ? WHERE ? > ?", bun.Ident(table), bun.Ident(column), past, bun.Ident(column), past).Exec(ctx); err != nil {
			return fmt.Errorf("end the leases of who was killed: %w", err)
		}
	}
	return nil
}

// dropSchemas removes what the kit has made on PostgreSQL.
func (k *Kit) dropSchemas() error {
	if len(k.schemas) == 0 {
		return nil
	}
	ctx := context.Background()
	p, err := postgres.Open(ctx, postgres.Config{DSN: k.dsn})
	if err != nil {
		return err
	}
	for schema := range k.schemas {
		_, dropped := p.DB().ExecContext(ctx, "DROP SCHEMA IF EXISTS ? CASCADE", bun.Ident(schema))
		err = errors.Join(err, dropped)
	}
	return errors.Join(err, p.Close())
}

// session is a transaction whose commit is a point of a crash.
type session struct {
	uow.Session
	process *process
}

// OwnedBy implements [uow.Owned].
func (s *session) OwnedBy(u *uow.Unit) {
	if o, ok := s.Session.(uow.Owned); ok {
		o.OwnedBy(u)
	}
}

func (s *session) Commit(ctx context.Context, statements []uow.Statement) error {
	if !s.Began() && len(statements) == 0 {
		return s.Session.Commit(ctx, statements)
	}
	return s.process.around(ctx, commit, func() error { return s.Session.Commit(ctx, statements) })
}
