package outboxdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
)

// lookLimit is how long a person's question may take.
const lookLimit = 30 * time.Second

// ErrEndless is a question of a person that took too long.
var ErrEndless = fmt.Errorf("outbox: it took longer than %v, and was ended", lookLimit)

// look runs what people want to know. An index is used wherever one can be: a
// server that has not counted since most rows were undelivered would rather read
// the table.
func (s *Store) look(ctx context.Context, fn func(ctx context.Context, db bun.IDB) error) error {
	limited, cancel := context.WithTimeout(ctx, lookLimit+time.Second)
	defer cancel()
	var err error
	if s.sqlite() {
		err = fn(limited, s.reader)
	} else {
		err = dbtx.Run(limited, s.reader, func(tx bun.Tx) error {
			// The server would go on after its client has gone.
			limit := lookLimit
			if deadline, ok := ctx.Deadline(); ok {
				limit = min(limit, max(time.Until(deadline), 0)+100*time.Millisecond)
			}
			if _, err := tx.ExecContext(limited, s.text("look_settings"), limit.Milliseconds()); err != nil {
				return err
			}
			return fn(limited, tx)
		})
	}
	if err != nil && ctx.Err() == nil && (limited.Err() != nil || ended(err)) {
		return fmt.Errorf("%w: %w", ErrEndless, err)
	}
	return err
}

// scanAll reads a query's one column.
func scanAll[T any](ctx context.Context, db bun.IDB, into *[]T, query string, args ...any) error {
	return dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var v T
		err := scan(&v)
		*into = append(*into, v)
		return err
	}, args...)
}

// rest waits, unless ctx is done before.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// text is the SQL of a step for this database; many are the same on both.
func (s *Store) text(step string) string { return textOf(s.db, step) }

func textOf(db bun.IDB, step string) string {
	database := "postgres"
	if db.Dialect().Name() == dialect.SQLite {
		database = "sqlite"
	}
	if _, err := sqlFiles.Open("sql/" + database + "/" + step + ".sql"); err != nil {
		database = "both"
	}
	return strings.TrimSpace(text(database, step))
}

func (s *Store) now() string { return dbtime.Now(s.db.Dialect()) }

// ended says whether PostgreSQL ended a statement because it took too long.
func ended(err error) bool { return dberr.CodeOf(err) == "57014" }

// lockTimeout says whether PostgreSQL gave up waiting for a lock.
func lockTimeout(err error) bool { return dberr.CodeOf(err) == "55P03" }
