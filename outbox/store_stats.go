package outbox

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// Stats is a target's state in the database. Nil is "not known", never zero.
type Stats struct {
	Counts        map[Status]int64 // every status, also those without a row; published includes rows removed at once
	OldestPending *time.Duration   // age of the oldest row that has not left; nil if there is none
	LeaseOwners   []string         // workers that hold partitions now
	LastError     *string          // of the row that was tried last among those that are failed or abandoned
}

// Stats returns the state of every target that has rows or partitions.
func (s *Store) Stats(ctx context.Context) (map[string]Stats, error) {
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
	err := each(ctx, s.reader, "SELECT target_broker, status, count(*) FROM outbox GROUP BY target_broker, status"+
		" UNION ALL SELECT target_broker, 'published', CAST(sum(n) AS bigint) FROM outbox_deleted GROUP BY target_broker",
		func(scan func(...any) error) error {
			var target string
			var status Status
			var n int64
			if err := scan(&target, &status, &n); err != nil {
				return err
			}
			of(target).Counts[status] += n
			return nil
		})
	if err != nil {
		return nil, err
	}
	err = each(ctx, s.reader, "SELECT target_broker, "+dbtime.Seconds(s.db.Dialect(), "min(created_at)", s.now())+
		" FROM outbox WHERE finished_at IS NULL AND status <> 'abandoned' GROUP BY target_broker",
		func(scan func(...any) error) error {
			var target string
			var seconds float64
			if err := scan(&target, &seconds); err != nil {
				return err
			}
			age := max(time.Duration(seconds*float64(time.Second)), 0)
			t := of(target)
			t.OldestPending = &age
			stats[target] = t
			return nil
		})
	if err != nil {
		return nil, err
	}
	err = each(ctx, s.reader, "SELECT target_broker, CASE WHEN locked_until > "+s.now()+" THEN locked_by END FROM outbox_partitions GROUP BY 1, 2 ORDER BY 1, 2",
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
	err = each(ctx, s.reader, "SELECT target_broker, last_error FROM (SELECT target_broker, last_error, row_number() OVER"+
		" (PARTITION BY target_broker ORDER BY last_attempt_at DESC) AS nth FROM outbox"+
		" WHERE status IN ('failed', 'abandoned') AND last_error IS NOT NULL) AS latest WHERE nth = 1",
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
