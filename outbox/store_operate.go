package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
)

// allows says whether a row may be changed.
func (e *RefusedError) allows(s Status, held bool) bool {
	return slices.Contains(e.From, s) && (held || !e.Held)
}

// What the verbs ask of a row.
var (
	retriable   = RefusedError{Verb: "retried", From: []Status{Failed, Abandoned}}
	abandonable = RefusedError{Verb: "abandoned", From: []Status{Pending, Failed}}
	skippable   = RefusedError{Verb: "skipped", From: []Status{Abandoned}, Held: true}
)

// Retry makes failed and abandoned rows pending, due at once, with attempts and
// losses counted from 0. A row that was held is the head of its key again. One
// that was abandoned and not held is published after what has followed it in its
// key: out of order.
//
// Like Abandon, Skip and Prioritize it is done to all rows or, with a
// [*RefusedError], to none, and is safe while processors run. [Store.Change] is
// for many rows.
func (s *Store) Retry(ctx context.Context, seqs ...int64) error {
	return s.operate(ctx, seqs, retriable, s.retried(s.now()))
}

// Abandon gives up pending and failed rows. What is behind them in their keys
// goes on. retention says how long they stay.
func (s *Store) Abandon(ctx context.Context, retention Retention, seqs ...int64) error {
	return s.operate(ctx, seqs, abandonable, s.abandoned(retention))
}

// Skip lets go on what is behind held rows in their keys. The rows stay
// abandoned, for as long as retention says.
func (s *Store) Skip(ctx context.Context, retention Retention, seqs ...int64) error {
	return s.operate(ctx, seqs, skippable, s.skipped(retention))
}

// Prioritize gives pending and failed rows another priority.
func (s *Store) Prioritize(ctx context.Context, priority int, seqs ...int64) error {
	return s.operate(ctx, seqs, RefusedError{Verb: "given a priority", From: []Status{Pending, Failed}}, fmt.Sprintf("priority = %d", priority))
}

func (s *Store) retried(due string) string {
	return "status = 'pending', attempts = 0, losses = 0, held = FALSE, finished_at = NULL, expires_at = NULL, available_at = " + due
}

func (s *Store) abandoned(r Retention) string {
	return "status = 'abandoned', last_error = COALESCE(last_error, 'abandoned by an operator'), " + s.finished(r)
}

func (s *Store) skipped(r Retention) string { return "held = FALSE, " + s.finished(r) }

func (s *Store) finished(r Retention) string {
	return "finished_at = " + s.now() + ", expires_at = " + s.expires(Config{Retention: r}.WithDefaults().Retention.Abandoned)
}

// operate changes rows if all of them allow it.
func (s *Store) operate(ctx context.Context, seqs []int64, refused RefusedError, set string) error {
	if len(seqs) == 0 {
		return errors.New("outbox: no row is named")
	}
	return s.inTx(ctx, s.db, func(tx bun.Tx) error {
		refused.Rows = map[int64]Status{}
		for _, seq := range seqs {
			refused.Rows[seq] = ""
		}
		err := s.lock(ctx, tx, seqs, bun.SafeQuery("TRUE"), func(row locked) {
			refused.Rows[row.seq] = row.status
			if refused.allows(row.status, row.held) {
				delete(refused.Rows, row.seq)
			}
		})
		if err != nil {
			return err
		}
		if len(refused.Rows) > 0 {
			return &refused
		}
		_, err = tx.ExecContext(ctx, "UPDATE outbox SET "+set+" WHERE seq IN ("+list(seqs)+")")
		return err
	})
}

// locked is a row that nobody else changes until the end of the transaction.
type locked struct {
	seq     int64
	status  Status
	held    bool
	matches bool
}

// lock locks rows, in the order of seq, and says of each whether it matches. It
// locks their partitions first: a claim that runs has ended by then, and the next
// one sees that what its worker remembers of these partitions may be wrong.
func (s *Store) lock(ctx context.Context, tx bun.Tx, seqs []int64, match schema.QueryWithArgs, see func(row locked)) error {
	these := "FROM outbox WHERE seq IN (" + list(seqs) + ")"
	partitions := " WHERE (target_broker, partition) IN (SELECT target_broker, partition " + these + ")"
	if !s.sqlite() {
		lock := "SELECT count(*) FROM (SELECT 1 FROM outbox_partitions" + partitions + " ORDER BY target_broker, partition FOR NO KEY UPDATE) AS locked"
		if _, err := tx.ExecContext(ctx, lock); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE outbox_partitions SET changes = changes + 1"+partitions); err != nil {
		return err
	}
	rows := "SELECT seq, status, held, (?) IS TRUE " + these + " ORDER BY seq"
	if !s.sqlite() {
		rows += " FOR NO KEY UPDATE"
	}
	return dbrows.Each(ctx, tx, rows, func(scan func(...any) error) error {
		var row locked
		err := scan(&row.seq, &row.status, &row.held, &row.matches)
		see(row)
		return err
	}, match)
}

// Held counts, per target, held keys and what waits behind them.
func (s *Store) Held(ctx context.Context) (map[string]Held, error) {
	held := map[string]Held{}
	err := dbrows.Each(ctx, s.reader, "SELECT h.target_broker, count(*), CAST(sum(h.behind) AS bigint) FROM (SELECT target_broker,"+
		" (SELECT count(*) FROM outbox AS o WHERE o.target_broker = head.target_broker AND o.partition = head.partition AND o.finished_at IS NULL"+
		" AND o.seq > head.seq AND o.partition_key = head.partition_key) AS behind"+
		" FROM outbox AS head WHERE held) AS h GROUP BY h.target_broker", func(scan func(...any) error) error {
		var target string
		var h Held
		err := scan(&target, &h.Keys, &h.Behind)
		held[target] = h
		return err
	})
	return held, err
}
