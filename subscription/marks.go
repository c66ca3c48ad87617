package subscription

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// clocksApart is how far a sender's clock and this database's may be apart: a
// message was stored before it was handled, but by another clock.
const clocksApart = time.Hour

// maxMarks is how many marks a subscription keeps. What has no room is noted in one
// mark for all of them, the others, which says of nobody what is settled: entries stay
// until nothing has come of them for as long as of any other sender that is gone.
const maxMarks = 1000

// spot is a delivery in its partition, until it is settled.
type spot struct {
	partition string
	lost      <-chan struct{}
	at        *list.Element
	// said are the promises, the latest of each source, that count when this delivery
	// is settled and all before it: its own, and those of what is settled up to the
	// next spot.
	said []outbox.Promise
}

// floors are the deliveries of each partition that are not settled, in their order.
// A session has one, and guards it.
type floors struct {
	marks   *marks
	open    map[string]*list.List
	trusted bool // What senders promise counts.
}

// add returns the spots of deliveries; nil for those whose partition nobody knows.
func (f *floors) add(deliveries []broker.Delivery) []*spot {
	spots := make([]*spot, len(deliveries))
	looked := map[string]bool{}
	for i, d := range deliveries {
		if d.Partition == "" {
			continue
		}
		if !looked[d.Partition] {
			looked[d.Partition] = true
			// One that was taken back, and has come back, begins anew: with what was not
			// acknowledged.
			if f.open[d.Partition] == nil || takenBack(f.open[d.Partition]) {
				f.open[d.Partition] = list.New()
			}
		}
		s := &spot{partition: d.Partition, lost: d.Lost}
		if p, ok := outbox.PromiseOf(d.Headers); ok && f.trusted {
			f.marks.note(d.Partition, outbox.Promise{Source: p.Source})
			if !p.AsOf.IsZero() {
				s.said = []outbox.Promise{p}
			}
		}
		s.at = f.open[d.Partition].PushBack(s)
		spots[i] = s
	}
	return spots
}

func takenBack(open *list.List) bool {
	for at := open.Front(); at != nil; at = at.Next() {
		select {
		case <-at.Value.(*spot).lost:
			return true
		default:
		}
	}
	return false
}

// settle notes what is settled, and the promises behind which now all is.
func (f *floors) settle(spots []*spot) {
	for _, s := range spots {
		if s == nil {
			continue
		}
		if before := s.at.Prev(); before != nil {
			before.Value.(*spot).hear(s.said)
		} else {
			for _, p := range s.said {
				f.marks.note(s.partition, p)
			}
		}
		s.said = nil
		f.open[s.partition].Remove(s.at) // if it is in that one, and not in one before
	}
}

// hear adds promises of later spots.
func (s *spot) hear(said []outbox.Promise) {
	for _, p := range said {
		i := slices.IndexFunc(s.said, func(have outbox.Promise) bool { return have.Source == p.Source })
		switch {
		case i < 0 && len(s.said) == maxMarks:
			s.said = append(s.said, outbox.Promise{}) // of the others
		case i < 0 && len(s.said) > maxMarks:
		case i < 0:
			s.said = append(s.said, p)
		case s.said[i].AsOf.Before(p.AsOf):
			s.said[i] = p
		}
	}
}

// marks are the promises that a run has seen since it wrote them down.
type marks struct {
	room int // For so many.
	mu   sync.Mutex
	seen map[mark]outbox.Promise
}

type mark struct{ partition, source string }

var others = mark{}

// note notes that a source has sent something, and what it promised: when it did
// is zero as long as not all before that is settled.
func (m *marks) note(partition string, p outbox.Promise) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := mark{partition, indexable(p.Source)}
	if _, known := m.seen[k]; p.Source == "" || !known && len(m.seen) >= m.room {
		k, p = others, outbox.Promise{}
	}
	if last, known := m.seen[k]; !known || last.AsOf.Before(p.AsOf) {
		m.seen[k] = p
	}
}

func (m *marks) take() map[mark]outbox.Promise {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.seen
	m.seen = map[mark]outbox.Promise{}
	return seen
}

// report writes down what was seen, each mark by itself: one that can't be written is
// kept for the next time. Until then nothing should be evicted.
func (e *evictor) report(ctx context.Context) error {
	seen := e.marks.take()
	if len(seen) == 0 {
		return nil
	}
	now, written, err := e.written(ctx)
	var errs []error
	for k, p := range seen {
		if err == nil && p.AsOf.After(now.Add(clocksApart)) {
			p = outbox.Promise{Source: p.Source} // by a clock that is wrong: it would be the latest for as long as that is ahead
		}
		if !written[k] && len(written) >= e.marks.room {
			k, p = others, outbox.Promise{}
		}
		failed := err
		if failed == nil {
			failed = e.write(ctx, k, p)
		}
		if failed != nil {
			e.marks.note(k.partition, outbox.Promise{Source: k.source, Settled: p.Settled, AsOf: p.AsOf})
			errs = append(errs, failed)
			continue
		}
		written[k] = true
	}
	if crowded := written[others]; crowded != e.crowded {
		if e.crowded = crowded; crowded {
			e.log.Warn("more senders have sent messages than the inbox can keep marks of: old entries stay in it", "marks", e.marks.room)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("subscription: note what senders have settled, %d times: %w", len(errs), errs[0])
	}
	return nil
}

// written are the marks that the database has, by its own time.
func (e *evictor) written(ctx context.Context) (now time.Time, written map[mark]bool, err error) {
	db := e.provider.DB()
	var at dbtime.Time
	if err := db.NewRaw("SELECT "+dbtime.Now(db.Dialect())).Scan(ctx, &at); err != nil {
		return now, nil, err
	}
	written = map[mark]bool{}
	err = dbrows.Each(ctx, db, "SELECT partition, source FROM inbox_marks WHERE subscription = ?", func(scan func(...any) error) error {
		var k mark
		err := scan(&k.partition, &k.source)
		written[k] = true
		return err
	}, e.subscription)
	return at.Time, written, err
}

// write writes a mark. A promise waits as the next until there is one that was made
// when all calls of its own time had ended: all copies are then before what is
// settled. A lower one, as after the sender was restored from a backup, counts at
// once.
func (e *evictor) write(ctx context.Context, k mark, p outbox.Promise) error {
	d := e.provider.DB().Dialect()
	const later = "m.next_at IS NULL OR excluded.next_at IS NOT NULL AND m.next_at <= ?"
	var next, at, ended any
	if !p.AsOf.IsZero() {
		next, at, ended = dbtime.Value(d, p.Settled), dbtime.Value(d, p.AsOf), dbtime.Value(d, p.AsOf.Add(-outbox.LongestCall))
	}
	_, err := e.provider.DB().ExecContext(ctx, "INSERT INTO inbox_marks AS m (subscription, partition, source, next, next_at) VALUES (?, ?, ?, ?, ?)"+
		" ON CONFLICT (subscription, partition, source) DO UPDATE SET seen_at = ?,"+
		" settled = CASE WHEN "+later+" THEN m.next ELSE m.settled END,"+
		" next = CASE WHEN "+later+" OR excluded.next < m.next THEN excluded.next ELSE m.next END,"+
		" next_at = CASE WHEN "+later+" THEN excluded.next_at ELSE m.next_at END",
		e.subscription, k.partition, k.source, next, at, bun.Safe(dbtime.Now(d)), ended, ended, ended)
	if err != nil {
		return fmt.Errorf("mark of %s in partition %s: %w", k.source, k.partition, err)
	}
	return nil
}

// settled is until when senders have settled what they had stored, in all
// partitions; ok is false if nobody has promised anything. It is zero as long as one
// of them hasn't. Who has sent nothing to a partition for longer than messages may
// come again doesn't count there.
func (e *evictor) settled(ctx context.Context) (until time.Time, ok bool, err error) {
	db := e.provider.DB()
	quiet, known, err := e.upSince(ctx, e.quiet)
	if err != nil {
		return until, false, err
	}
	if known {
		if _, err := db.ExecContext(ctx, "DELETE FROM inbox_marks WHERE subscription = ? AND seen_at < ?", e.subscription, dbtime.Value(db.Dialect(), quiet)); err != nil {
			return until, false, err
		}
	}
	// A mark of a time that is still to come is from when a clock was wrong, and no later
	// one would replace it: nothing is known of its sender.
	_, err = db.ExecContext(ctx, "UPDATE inbox_marks SET settled = NULL, next = NULL, next_at = NULL WHERE subscription = ? AND next_at > ?",
		e.subscription, bun.Safe(dbtime.In(db.Dialect(), clocksApart)))
	if err != nil {
		return until, false, err
	}
	err = dbrows.Each(ctx, db, "SELECT settled, next FROM inbox_marks WHERE subscription = ?", func(scan func(...any) error) error {
		var was, then any
		err := scan(&was, &then)
		var settled, next dbtime.Time
		if settled.Scan(was) != nil || next.Scan(then) != nil {
			settled, next = dbtime.Time{}, dbtime.Time{} // no time: nothing is known, and nothing goes
		}
		if next.Time.Before(settled.Time) {
			settled = next
		}
		if !ok || settled.Time.Before(until) {
			until, ok = settled.Time, true
		}
		return err
	}, e.subscription)
	return until, ok, err
}

// hold moves a cutoff back to before what a sender may send again; ok is false if
// nothing is known to be before that.
func (e *evictor) hold(ctx context.Context, cutoff time.Time) (at time.Time, ok bool, err error) {
	until, promised, err := e.settled(ctx)
	if err != nil {
		return at, false, fmt.Errorf("subscription: find out what senders have settled: %w", err)
	}
	held := promised && until.Add(-clocksApart).Before(cutoff)
	if held != e.held {
		e.held = held
		if held {
			e.log.Info("old entries stay in the inbox: a sender has not settled all that it stored before them, or it is not known yet; table inbox_marks says which")
		} else {
			e.log.Info("old entries leave the inbox again")
		}
	}
	if held {
		return until.Add(-clocksApart), !until.IsZero(), nil
	}
	return cutoff, true, nil
}
