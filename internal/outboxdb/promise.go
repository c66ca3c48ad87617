package outboxdb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// horizon is a place and a time before which nothing can appear any more: what had
// been stored when it was noted, as soon as all have ended who wrote then.
type horizon struct {
	seq     int64
	at      time.Time
	noted   int64
	notedAt time.Time
	writers []string // of these some have not ended
}

// sample moves it on. The time comes first, then the last seq that was drawn,
// then who is writing: what was stored before by a transaction that isn't among them
// is committed.
func (s *Store) sample(ctx context.Context, h *horizon) error {
	var now dbtime.Time
	if err := s.db.QueryRowContext(ctx, "SELECT "+s.now()).Scan(&now); err != nil {
		return err
	}
	sample, err := s.Horizon(ctx)
	if err != nil {
		return err
	}
	for range 2 {
		if slices.ContainsFunc(h.writers, func(w string) bool { return slices.Contains(sample.Writers, w) }) {
			return nil
		}
		h.seq, h.at = max(h.seq, h.noted), h.notedAt
		h.noted, h.notedAt, h.writers = sample.Last, now.Time, sample.Writers
	}
	return nil
}

// Promises makes the promises of one target. The zero value has made none. It is
// used by one goroutine at a time.
type Promises struct {
	source  string
	horizon horizon
	// lows are, by partition, seqs up to which nothing was in the queue when nothing
	// could appear there any more, but for what an operator puts back, which is due.
	lows []int64
}

// Promises returns the maker of a target's promises, for one goroutine at a time.
func (s *Store) Promises(target string, _ relay.LaneID) func(context.Context) (outbox.Promise, bool, error) {
	memory := &Promises{}
	return func(ctx context.Context) (outbox.Promise, bool, error) { return s.Promise(ctx, target, memory) }
}

// Promise makes the next one. ok is false as long as a transaction is open that
// was writing when it was called first. It may be sent when a lease was renewed
// since: until then a crash of the server could undo a settle that it relies on.
func (s *Store) Promise(ctx context.Context, target string, memory *Promises) (p outbox.Promise, ok bool, err error) {
	if memory.source == "" {
		if err := s.beginPromises(ctx, memory); err != nil {
			return p, false, err
		}
	}
	p.Source = memory.source + ":" + target
	if s.sqlite() {
		// While it has the writer, no transaction is open that has written.
		err = dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
			p.Settled, p.AsOf, err = s.unsettled(ctx, tx, target, memory)
			return err
		})
	} else if err = s.sample(ctx, &memory.horizon); err == nil {
		p.Settled, p.AsOf, err = s.unsettled(ctx, s.db, target, memory)
		if memory.horizon.at.Before(p.Settled) {
			p.Settled = memory.horizon.at
		}
	}
	if err != nil {
		return p, false, fmt.Errorf("outbox: look for the oldest row that isn't settled: %w", err)
	}
	return p, !p.Settled.IsZero(), nil
}

// beginPromises finds out how this outbox is called, and how many partitions it has.
func (s *Store) beginPromises(ctx context.Context, memory *Promises) error {
	if _, err := s.db.ExecContext(ctx, s.text("setting_init"), "source", uuid.NewString()); err != nil {
		return fmt.Errorf("outbox: write the outbox's name into outbox_settings: %w", err)
	}
	partitions, err := Partitions(ctx, s.db)
	if err != nil {
		return err
	}
	id, err := Name(ctx, s.db)
	if err != nil {
		return err
	}
	memory.source, memory.lows = id, make([]int64, partitions)
	return nil
}

// Name is what an outbox calls itself before its consumers, "" as long as it has published nothing.
func Name(ctx context.Context, db bun.IDB) (string, error) {
	name, _, err := readSetting(ctx, db, "source")
	if err != nil {
		return "", fmt.Errorf("outbox: read the outbox's name from outbox_settings: %w", err)
	}
	return name, nil
}

// unsettled is when the oldest row was stored that isn't settled, or is abandoned
// and may be at the broker all the same; the present, if there is none.
//
// In each partition it is looked for behind what was found before: under an old
// snapshot all that was ever published would be passed. What is below by then an
// operator has put back: that is due, failed, or held, and has indexes of its own.
func (s *Store) unsettled(ctx context.Context, db bun.IDB, target string, memory *Promises) (since, now time.Time, err error) {
	lows := make([]schema.QueryWithArgs, len(memory.lows))
	for part, low := range memory.lows {
		lows[part] = bun.SafeQuery("(?, ?)", part, low)
	}
	err = dbrows.Each(ctx, db, s.text("promise"), func(scan func(...any) error) error {
		var part int
		var seq nullNumber
		var at, clock dbtime.Time
		if err := scan(&part, &seq, &at, &clock); err != nil {
			return err
		}
		now = clock.Time
		if at.Valid && (since.IsZero() || at.Time.Before(since)) {
			since = at.Time
		}
		if part >= 0 {
			known := memory.horizon.seq
			if at.Valid {
				known = min(known, int64(seq)-1)
			}
			memory.lows[part] = max(memory.lows[part], known)
		}
		return nil
	}, target, bun.List(lows), bun.Safe(s.now()))
	if since.IsZero() {
		since = now
	}
	return since, now, err
}
