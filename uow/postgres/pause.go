package postgres

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// missesWithin is how close together a connection's misses are that a pooler makes.
	missesWithin = time.Minute
	// pauseFor is how long nothing is prepared then.
	pauseFor = 10 * time.Minute
)

// pause is a time in which nothing is prepared, because a pooler stands in between: it
// gives transactions to connections that know other statements.
type pause struct {
	name  string
	log   *slog.Logger
	until atomic.Pointer[time.Time] // with the monotonic clock, as the other one may be set back; nil: there was none yet
}

func (p *pause) on() bool { return before(time.Now(), p.until.Load()) }

func before(now time.Time, until *time.Time) bool { return until != nil && now.Before(*until) }

// missed says whether err is that the server doesn't know a statement that conn has
// prepared, or knows it already, and notes it. Somebody may have deallocated it:
// conn's statements are then prepared once more. If it happens to conn again soon, a
// pooler stands in between.
func (p *pause) missed(conn *pgx.Conn, err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != unknownStatement && pg.Code != duplicateStatement {
		return false
	}
	k, now := knownTo(conn), time.Now()
	k.forgetAll()
	again := now.Sub(k.missed) < missesWithin
	k.missed = now
	last, until := p.until.Load(), now.Add(pauseFor)
	if again && !before(now, last) && p.until.CompareAndSwap(last, &until) {
		p.log.Warn("a connection's prepared statements were gone twice within a minute, as behind a pooler: nothing is prepared for a while, which costs PostgreSQL more per statement; let the provider's dsn lead to a pooler that knows prepared statements (PgBouncer: max_prepared_statements), or don't deallocate them",
			"provider", p.name, "for", pauseFor, "error", pg.Message)
	}
	return true
}
