package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/dbrows"
)

// watch finds what nobody rang for: what other processes have committed, or
// operators have changed. It is one query for all lanes, as long as nothing is
// found at growing intervals; a look of its own costs a worker more.
func (p *Processor) watch(hard context.Context) {
	cfg := p.cfg.Outbox
	for interval := cfg.PollInterval; ; {
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
		case <-p.hint:
		case <-p.stop:
		}
		timer.Stop()
		if p.stopping() {
			return
		}
		if p.find(hard) {
			interval = cfg.PollInterval
		} else {
			interval = min(2*interval, cfg.MaxPollInterval)
		}
	}
}

// find rings for the workers in whose partitions something may be to do.
func (p *Processor) find(hard context.Context) (found bool) {
	defer func() {
		if v := recover(); v != nil {
			for _, l := range p.lanes {
				l.crashed("polling", v)
			}
		}
	}()
	var areas []Area
	for _, l := range p.lanes {
		for _, w := range l.workers {
			if w.full.Load() {
				found = true // it goes on by itself
			} else {
				areas = append(areas, w.areas()...)
			}
		}
	}
	if len(areas) == 0 {
		return found
	}
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	all, err := p.cfg.Store.Look(ctx, areas)
	for _, l := range p.lanes {
		l.database.Note(hard, watching, err)
	}
	for _, a := range all {
		l := p.lanes[a.Target]
		if w := l.worker(a.Partition); w != nil {
			w.perhaps(a.Partition)
		}
		if a.Partition < 0 {
			for _, w := range l.workers {
				w.look()
			}
		}
	}
	return found || len(all) > 0
}

// Area is a partition that a worker holds, and what it knows of it.
type Area struct {
	Target    string
	Partition int
	// After is the seq up to which it knows every unfinished row, unless an
	// operator has changed more often than Changes.
	After, Changes int64
}

// Look returns those of the areas in which a row is due that their workers may
// not know of. For rows with priorities the partition is -1, which stands for all
// of the target. It takes no lock.
func (s *Store) Look(ctx context.Context, areas []Area) (found []Area, err error) {
	values := make([]string, len(areas))
	args := make([]any, len(areas))
	for i, a := range areas {
		values[i] = fmt.Sprintf("(?%d, %d, %d, %d)", i, a.Partition, a.After, a.Changes)
		args[i] = a.Target
	}
	err = dbrows.Each(ctx, s.reader, "WITH v(target_broker, partition, after, changes) AS (VALUES "+strings.Join(values, ", ")+")"+
		" SELECT target_broker, partition FROM v WHERE (SELECT o.seq FROM outbox AS o WHERE o.target_broker = v.target_broker AND o.partition = v.partition"+
		" AND o.priority = 0 AND o.finished_at IS NULL AND o.status IN ('pending', 'failed') AND o.available_at <= "+s.now()+
		" AND o.seq > CASE WHEN v.after > 0 AND EXISTS (SELECT 1 FROM outbox_partitions AS p WHERE p.target_broker = v.target_broker"+
		" AND p.partition = v.partition AND p.changes = v.changes) THEN v.after ELSE 0 END ORDER BY o.seq LIMIT 1) IS NOT NULL"+
		" UNION ALL SELECT target_broker, -1 FROM (SELECT DISTINCT target_broker FROM v) AS t WHERE (SELECT o.priority FROM outbox AS o"+
		" WHERE o.target_broker = t.target_broker AND o.priority <> 0 AND o.finished_at IS NULL AND o.status IN ('pending', 'failed') AND o.available_at <= "+s.now()+" ORDER BY o.priority LIMIT 1) IS NOT NULL",
		func(scan func(...any) error) error {
			var a Area
			if err := scan(&a.Target, &a.Partition); err != nil {
				return err
			}
			found = append(found, a)
			return nil
		}, args...)
	return found, err
}
