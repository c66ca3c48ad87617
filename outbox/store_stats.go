package outbox

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// Stats is a target's state in the database. Nil is "not known", never zero.
type Stats struct {
	Counts        map[Status]int64 // every status, also those without a row; published includes rows that were removed
	OldestPending *time.Duration   // age of the oldest row that has not left; nil if there is none
	LeaseOwners   []string         // workers that hold partitions now
	LastError     *string          // of the row that was tried last among those that are failed or abandoned
}

// Conditions that an index answers, whatever the number of published rows.
const (
	unfinished = "finished_at IS NULL"
	givenUp    = "finished_at IS NOT NULL AND published_at IS NULL"
)

// Stats returns the state of every target that has rows or partitions. What it costs
// depends on the rows that are not published, not on those that are.
func (s *Store) Stats(ctx context.Context) (stats map[string]Stats, err error) {
	if s.sqlite() {
		return s.stats(ctx, s.reader)
	}
	err = s.inTx(ctx, s.reader, func(tx bun.Tx) error {
		// A server that has not counted since most rows were unfinished would rather
		// read the table.
		if _, err := tx.ExecContext(ctx, "SELECT set_config('enable_seqscan', 'off', true)"); err != nil {
			return err
		}
		stats, err = s.stats(ctx, tx)
		return err
	})
	return stats, err
}

func (s *Store) stats(ctx context.Context, db bun.IDB) (map[string]Stats, error) {
	stats := map[string]Stats{}
	of := func(target string) Stats {
		t, ok := stats[target]
		if !ok {
			t.Counts = map[Status]int64{}
			for _, status := range Statuses() {
				t.Counts[status] = 0
			}
			stats[target] = t
		}
		return t
	}
	err := each(ctx, db, "SELECT target_broker, status, count(*), "+dbtime.Seconds(s.db.Dialect(), "min(created_at)", s.now())+" FROM outbox WHERE "+unfinished+" GROUP BY target_broker, status"+
		" UNION ALL SELECT target_broker, 'abandoned', count(*), NULL FROM outbox WHERE "+givenUp+" GROUP BY target_broker"+
		" UNION ALL SELECT target_broker, 'published', CAST(sum(n) AS bigint), NULL FROM outbox_published GROUP BY target_broker",
		func(scan func(...any) error) error {
			var target string
			var status Status
			var n int64
			var seconds *float64
			if err := scan(&target, &status, &n, &seconds); err != nil {
				return err
			}
			t := of(target)
			t.Counts[status] += n
			if seconds != nil && status != Abandoned {
				age := max(time.Duration(*seconds*float64(time.Second)), 0)
				if t.OldestPending == nil || age > *t.OldestPending {
					t.OldestPending = &age
				}
			}
			stats[target] = t
			return nil
		})
	if err != nil {
		return nil, err
	}
	err = each(ctx, db, "SELECT target_broker, CASE WHEN locked_until > "+s.now()+" THEN locked_by END FROM outbox_partitions GROUP BY 1, 2 ORDER BY 1, 2",
		func(scan func(...any) error) error {
			var target string
			var owner *string
			if err := scan(&target, &owner); err != nil {
				return err
			}
			t := of(target)
			if owner != nil {
				t.LeaseOwners = append(t.LeaseOwners, *owner)
			}
			stats[target] = t
			return nil
		})
	if err != nil {
		return nil, err
	}
	failures := func(which string) string {
		return "SELECT target_broker, last_error, last_attempt_at FROM outbox WHERE " + which + " AND status IN ('failed', 'abandoned') AND last_error IS NOT NULL"
	}
	err = each(ctx, db, "SELECT target_broker, last_error FROM (SELECT target_broker, last_error, row_number() OVER"+
		" (PARTITION BY target_broker ORDER BY last_attempt_at DESC) AS nth FROM ("+failures(unfinished)+" UNION ALL "+failures(givenUp)+") AS failures) AS latest WHERE nth = 1",
		func(scan func(...any) error) error {
			var target, text string
			if err := scan(&target, &text); err != nil {
				return err
			}
			t := of(target)
			t.LastError = &text
			stats[target] = t
			return nil
		})
	if err != nil {
		return nil, err
	}
	return stats, nil
}
