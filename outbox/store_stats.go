package outbox

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Conditions that an index answers, whatever the number of published rows.
const (
	unfinished = "finished_at IS NULL"
	givenUp    = "finished_at IS NOT NULL AND published_at IS NULL"
)

// settled is how many of a row's attempts had an outcome: neither one that is being
// made nor those that were lost.
const settled = "(attempts - losses - CASE status WHEN 'processing' THEN 1 ELSE 0 END)"

// Stats returns the state of every target that has rows or partitions. What it costs
// depends on the rows that are not published, not on those that are.
func (s *Store) Stats(ctx context.Context) (stats map[string]Stats, err error) {
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		stats, err = s.stats(ctx, db)
		return err
	})
	return stats, err
}

func (s *Store) stats(ctx context.Context, db bun.IDB) (map[string]Stats, error) {
	stats := map[string]Stats{}
	of := func(target string) Stats {
		t, ok := stats[target]
		if !ok {
			t = NoStats()
			stats[target] = t
		}
		return t
	}
	const attempts = ", sum(" + settled + "), sum(CASE WHEN " + settled + " > 1 THEN " + settled + " - 1 ELSE 0 END)"
	err := dbrows.Each(ctx, db, "SELECT target_broker, status, count(*), "+dbtime.Seconds(s.db.Dialect(), "min(created_at)", s.now())+attempts+" FROM outbox WHERE "+unfinished+" GROUP BY target_broker, status"+
		" UNION ALL SELECT target_broker, 'abandoned', count(*), NULL"+attempts+" FROM outbox WHERE "+givenUp+" GROUP BY target_broker"+
		" UNION ALL SELECT target_broker, 'published', CAST(sum(n) AS bigint), NULL, CAST(sum(n + retries) AS bigint), CAST(sum(retries) AS bigint) FROM outbox_published GROUP BY target_broker",
		func(scan func(...any) error) error {
			var target string
			var status Status
			var n, attempts, retries int64
			var seconds *float64
			if err := scan(&target, &status, &n, &seconds, &attempts, &retries); err != nil {
				return err
			}
			t := of(target)
			t.Counts[status] += n
			t.Attempts, t.Retries = t.Attempts+attempts, t.Retries+retries
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
	err = dbrows.Each(ctx, db, "SELECT target_broker, CASE WHEN locked_until > "+s.now()+" THEN locked_by END FROM outbox_partitions GROUP BY 1, 2 ORDER BY 1, 2",
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
	err = dbrows.Each(ctx, db, "SELECT target_broker, last_error FROM (SELECT target_broker, last_error, row_number() OVER"+
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
