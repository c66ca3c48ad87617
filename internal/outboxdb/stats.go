package outboxdb

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/outbox"
)

// Stats returns the state of every target that a context sends to, or of which something is
// left. What it costs depends on the rows that
// are not published, and on what was published since housekeeping counted last.
func (s *Store) Stats(ctx context.Context) (map[string]outbox.Stats, error) {
	stats := map[string]outbox.Stats{}
	err := s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		for _, read := range []func(context.Context, bun.IDB, map[string]outbox.Stats) error{s.countRows, s.ageOldest, s.listMembers, s.quoteFailures, s.leaveOut} {
			if err := read(ctx, db, stats); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: read the state of the targets: %w", err)
	}
	return stats, nil
}

// Nameless says that a target of [Store.Stats] is a number that outbox_lanes has no name for, as
// after a TRUNCATE or a restore without that table: writers and engines give the broker another
// number then, and nobody publishes what has this one.
func Nameless(target string) bool { return strings.HasSuffix(target, ", not in outbox_lanes") }

// leaveOut drops the targets that no context sends to any more, unless something is left of
// them. Their names stay in outbox_lanes.
func (s *Store) leaveOut(ctx context.Context, db bun.IDB, stats map[string]outbox.Stats) error {
	contexts, err := ReadTargets(ctx, db)
	if err != nil || len(contexts) == 0 {
		return nil //nolint:nilerr // whose brokers can't be read gets them all
	}
	maps.DeleteFunc(stats, func(target string, t outbox.Stats) bool {
		for status, n := range t.Counts {
			if n != 0 && status != outbox.Published {
				return false
			}
		}
		return len(t.Members) == 0 && !someSend(contexts, target)
	})
	return nil
}

// countRows has a line for each target, also for one without rows.
func (s *Store) countRows(ctx context.Context, db bun.IDB, stats map[string]outbox.Stats) error {
	return dbrows.Each(ctx, db, s.text("stats_counts"), func(scan func(...any) error) error {
		var target string
		var status outbox.Status
		var n, attempts, retries int64
		if err := scan(&target, &status, &n, &attempts, &retries); err != nil {
			return err
		}
		t, ok := stats[target]
		if !ok {
			t = outbox.NoStats()
		}
		t.Counts[status] += n
		t.Attempts, t.Retries = t.Attempts+attempts, t.Retries+retries
		stats[target] = t
		return nil
	})
}

func (s *Store) ageOldest(ctx context.Context, db bun.IDB, stats map[string]outbox.Stats) error {
	return dbrows.Each(ctx, db, s.text("stats_oldest"), func(scan func(...any) error) error {
		var target string
		var seconds *float64
		if err := scan(&target, &seconds); err != nil {
			return err
		}
		t := stats[target]
		t.Bodiless = seconds == nil
		stats[target] = t
		if passed := age(seconds); passed != nil {
			oldest := time.Duration(*passed * float64(time.Second))
			t.OldestPending = &oldest
			stats[target] = t
		}
		return nil
	}, bun.Safe(s.now()))
}

func (s *Store) listMembers(ctx context.Context, db bun.IDB, stats map[string]outbox.Stats) error {
	return dbrows.Each(ctx, db, s.text("stats_members"), func(scan func(...any) error) error {
		var target string
		var m outbox.Member
		var broker []byte
		err := scan(&target, &m.Name, &m.Healthy, &m.Trouble, &broker, &m.Partitions)
		if json.Unmarshal(broker, &m.Broker) != nil {
			m.Broker = nil // it hasn't said
		}
		t := stats[target]
		if m.Partitions > 0 && !slices.Contains(t.LeaseOwners, m.Name) {
			t.LeaseOwners = append(t.LeaseOwners, m.Name)
		}
		t.Members = append(t.Members, m)
		stats[target] = t
		return err
	}, bun.Safe(s.now()))
}

func (s *Store) quoteFailures(ctx context.Context, db bun.IDB, stats map[string]outbox.Stats) error {
	return dbrows.Each(ctx, db, s.text("stats_errors"), func(scan func(...any) error) error {
		var target, words string
		err := scan(&target, &words)
		t := stats[target]
		t.LastError = &words
		stats[target] = t
		return err
	})
}
