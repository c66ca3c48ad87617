package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// maxErrorLength is how many characters of an error a row keeps.
const maxErrorLength = 2048

// Outcome is what became of a claimed row.
type Outcome struct {
	Seq    int64
	Status Status // Published, Failed, Abandoned or Pending (handed back).
	// Class and Error are why, for Failed and Abandoned.
	Class string
	Error string
	// After is how long from now a failed row waits.
	After time.Duration
	// Unspent gives the attempt back.
	Unspent bool
	// Hold keeps the key of an abandoned row waiting.
	Hold bool
}

// Settlement is the write-back of one claim.
type Settlement struct {
	Claim    int64
	Target   string
	Outcomes []Outcome
	// Retention says when the rows expire, and whether published ones are removed
	// at once.
	Retention Retention
}

// publishedSlots spreads the counters of published rows.
const publishedSlots = 16

// Settle writes a claim's outcomes back, all or none. A row that is no longer
// in this claim's hand, because a takeover ended it or it is gone, is left as it
// is; stale counts those.
func (s *Store) Settle(ctx context.Context, w Settlement) (stale int, err error) {
	if len(w.Outcomes) == 0 {
		return 0, nil
	}
	var published []int64
	var others []Outcome
	for _, o := range w.Outcomes {
		if o.Status == Published {
			published = append(published, o.Seq)
		} else {
			others = append(others, o)
		}
	}
	settled := int64(0)
	if len(others) == 0 && (!w.Retention.Delete || !s.sqlite()) {
		n, ok, err := s.settleAtOnce(ctx, w, published)
		if err != nil {
			return 0, err
		}
		if ok {
			return len(w.Outcomes) - int(n), nil
		}
		// One statement is a transaction.
		if settled, err = s.settlePublished(ctx, s.db, w, published); err != nil {
			return 0, err
		}
		return len(w.Outcomes) - int(settled), nil
	}
	err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
		settled = 0
		if len(others) > 0 {
			n, err := s.settleOthers(ctx, tx, w, others)
			if err != nil {
				return err
			}
			settled += n
		}
		if len(published) > 0 {
			n, err := s.settlePublished(ctx, tx, w, published)
			if err != nil {
				return err
			}
			settled += n
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(w.Outcomes) - int(settled), nil
}

// mine is the guard of a write-back. It locks no rows beforehand, as takeover and
// purge do to keep the order of seq: that costs half of a settle's time. The two
// can only meet in a circle after a lease was lost; the database then ends one,
// and both are tried again.
func mine(w Settlement, seqs []int64) string {
	return fmt.Sprintf("outbox.seq IN (%s) AND claim_id = %d AND outbox.status = 'processing'", list(seqs), w.Claim)
}

func (s *Store) settlePublished(ctx context.Context, tx bun.IDB, w Settlement, seqs []int64) (n int64, err error) {
	if !w.Retention.Delete {
		return s.settleAndCount(ctx, tx, w, s.publish(w, seqs, w.Retention.Published), false)
	}
	n, err = s.settleAndCount(ctx, tx, w, "DELETE FROM outbox WHERE "+mine(w, seqs)+" AND "+removable, true)
	if err != nil || n == int64(len(seqs)) {
		return n, err
	}
	// The others aren't the claim's any more, or a back-fill may need them: those a
	// purge removes when it doesn't.
	kept, err := s.settleAndCount(ctx, tx, w, s.publish(w, seqs, 0), false)
	return n + kept, err
}

func (s *Store) publish(w Settlement, seqs []int64, retention time.Duration) string {
	return "UPDATE outbox SET status = 'published', published_at = " + s.now() + ", finished_at = " + s.now() + ", expires_at = " + s.expires(retention) + "," +
		" last_error = NULL, failure_class = NULL," +
		" locked_by = NULL, locked_until = NULL, fence = NULL, claim_id = NULL" +
		" WHERE " + mine(w, seqs)
}

// settleAndCount also counts what it settles: rows don't stay for ever, and are
// too many to be counted at each look. On SQLite a trigger counts those that stay.
func (s *Store) settleAndCount(ctx context.Context, tx bun.IDB, w Settlement, settle string, deletes bool) (n int64, err error) {
	slot := w.Claim % publishedSlots
	if !s.sqlite() {
		err = tx.QueryRowContext(ctx, "WITH settled AS ("+settle+" RETURNING attempts - losses - 1 AS retries), counted AS ("+count+
			" SELECT ?, ?, count(*), sum(retries) FROM settled HAVING count(*) > 0 "+add+")"+
			" SELECT count(*) FROM settled", w.Target, slot).Scan(&n)
		return n, err
	}
	if !deletes {
		result, err := tx.ExecContext(ctx, settle)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	}
	retries := int64(0)
	err = dbrows.Each(ctx, tx, settle+" RETURNING attempts - losses - 1", func(scan func(...any) error) error {
		var again int64
		err := scan(&again)
		n, retries = n+1, retries+again
		return err
	})
	if err != nil || n == 0 {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, count+" VALUES (?, ?, ?, ?) "+add, w.Target, slot, n, retries)
	return n, err
}

const (
	count = "INSERT INTO outbox_published (target_broker, slot, n, retries)"
	add   = "ON CONFLICT (target_broker, slot) DO UPDATE SET n = outbox_published.n + excluded.n, retries = outbox_published.retries + excluded.retries"
)

func (s *Store) expires(after time.Duration) string {
	if after < 0 {
		return "NULL"
	}
	return dbtime.In(s.db.Dialect(), after)
}

// settleOthers writes back what was not published. A row that was tried and
// settled has killed nobody: the attempts that its lost claims cost are given
// back. One that is only handed back has proved nothing, and keeps its losses.
func (s *Store) settleOthers(ctx context.Context, tx bun.Tx, w Settlement, outcomes []Outcome) (int64, error) {
	seqs := make([]int64, len(outcomes))
	values := make([]string, len(outcomes))
	args := make([]any, 0, 2*len(outcomes))
	for i, o := range outcomes {
		seqs[i] = o.Seq
		due, finished, expires := "CAST(NULL AS text)", "CAST(NULL AS text)", "CAST(NULL AS text)"
		at := func(d time.Duration) string { return "CAST(" + dbtime.In(s.db.Dialect(), d) + " AS text)" }
		if o.Status == Failed {
			due = at(o.After)
		}
		if o.Status == Abandoned && !o.Hold {
			finished = at(0)
			if w.Retention.Abandoned >= 0 {
				expires = at(w.Retention.Abandoned)
			}
		}
		unspent := 0
		if o.Unspent {
			unspent = 1
		}
		values[i] = fmt.Sprintf("(%d, '%s', ?, ?, %s, %s, %s, %d, %t)", o.Seq, o.Status, due, finished, expires, unspent, o.Status == Abandoned && o.Hold)
		args = append(args, nullable(o.Class), nullable(clip(o.Error)))
	}
	cast := func(column string) string {
		if s.sqlite() {
			return column
		}
		return "CAST(" + column + " AS timestamptz)"
	}
	result, err := tx.ExecContext(ctx, "WITH v(seq, status, class, error, due, finished, expires, unspent, held) AS (VALUES "+strings.Join(values, ", ")+")"+
		" UPDATE outbox SET status = v.status, held = v.held, finished_at = "+cast("v.finished")+", expires_at = "+cast("v.expires")+","+
		" available_at = COALESCE("+cast("v.due")+", available_at),"+
		" attempts = attempts - v.unspent - CASE WHEN v.status = 'pending' THEN 0 ELSE losses END,"+
		" losses = CASE WHEN v.status = 'pending' THEN losses ELSE 0 END,"+
		" last_error = COALESCE(CAST(v.error AS text), last_error), failure_class = COALESCE(CAST(v.class AS text), failure_class),"+
		" locked_by = NULL, locked_until = NULL, fence = NULL, claim_id = NULL"+
		" FROM v WHERE outbox.seq = v.seq AND "+mine(w, seqs), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// clip makes an error fit its column: at most 2048 characters, valid UTF-8, and
// no NUL, which PostgreSQL can't store.
func clip(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�")
	if utf8.RuneCountInString(s) > maxErrorLength {
		s = string([]rune(s)[:maxErrorLength-1]) + "…"
	}
	return s
}
