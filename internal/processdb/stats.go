package processdb

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Stats is how many processes of one kind there are.
type Stats struct {
	Running int64 `json:"running"`
	Awaited int64 `json:"awaited"`
	Ended   int64 `json:"ended"` // and not forgotten yet
	// Idle ones run, have heard nothing for 30 days, and have no timer: nothing that they
	// have set will end them. They are looked for among the 10,000 oldest.
	Idle int64 `json:"idle"`
	// OldestSeconds is the age of the oldest that runs; nil: none does.
	OldestSeconds *float64 `json:"oldest_seconds"`
}

// dear is how many times as long as a count it is good for: there may be millions.
const dear = 20

// Stats counts processes, by name, those included of which there is a row only. The
// counts may be from a little earlier if they take long; who is the oldest isn't.
func (s *Store) Stats(ctx context.Context) (map[string]Stats, error) {
	s.counting.Lock()
	defer s.counting.Unlock()
	if !time.Now().Before(s.counted) {
		began := time.Now()
		counts, err := s.count(ctx)
		s.counted = time.Now().Add(dear * time.Since(began)) // Also if it took too long.
		if s.counts = counts; err != nil {
			return nil, fmt.Errorf("processes: count them: %w", err)
		}
	}
	if s.counts == nil {
		return nil, fmt.Errorf("processes: they were not counted in time; it is tried again")
	}
	all := maps.Clone(s.counts)
	for name, n := range all {
		if n.Running == 0 {
			continue
		}
		err := dbrows.Each(ctx, s.db, "SELECT "+dbtime.Seconds(s.db.Dialect(), "p.began_at", dbtime.Now(s.db.Dialect()))+
			" FROM processes AS p WHERE p.process = ? AND p.status = 'running' ORDER BY p.began_at, p.id LIMIT 1", func(scan func(...any) error) error {
			return scan(&n.OldestSeconds)
		}, name)
		if err != nil {
			return nil, fmt.Errorf("processes: look for the oldest: %w", err)
		}
		all[name] = n
	}
	return all, nil
}

// count reads indexes only, of which one has those that run, and another one the others.
func (s *Store) count(ctx context.Context) (map[string]Stats, error) {
	all := map[string]Stats{}
	err := dbrows.Each(ctx, s.db, "SELECT process, status, count(*) FROM processes WHERE status <> 'running' GROUP BY 1, 2"+
		" UNION ALL SELECT process, 'running', count(*) FROM processes WHERE status = 'running' GROUP BY 1", func(scan func(...any) error) error {
		var name, status string
		var n int64
		if err := scan(&name, &status, &n); err != nil {
			return err
		}
		stats := all[name]
		switch status {
		case Running:
			stats.Running = n
		case Awaited:
			stats.Awaited = n
		default:
			stats.Ended = n
		}
		all[name] = stats
		return nil
	})
	for name, stats := range all {
		if err == nil && stats.Running > 0 {
			before := "(SELECT " + dbtime.In(s.db.Dialect(), -IdleAfter) + ")"
			err = s.db.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT * FROM processes AS p WHERE p.process = ? AND p.status = 'running' AND p.began_at < "+before+
				" ORDER BY p.began_at, p.id LIMIT ?) AS p WHERE "+s.idle(), name, oldest).Scan(&stats.Idle)
			all[name] = stats
		}
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}
