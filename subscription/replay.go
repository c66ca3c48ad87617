package subscription

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

const (
	// Replays are looked for at growing intervals.
	replayPoll    = 500 * time.Millisecond
	replayPollMax = 4 * time.Second
	// replayWave is how many keys are replayed at a time.
	replayWave = 8
	// takenFor is how long a taken dead letter is left to who has taken it, besides
	// the time its handler may have.
	takenFor = 30 * time.Second
)

// parkedRow is a dead letter that is handled again.
type parkedRow struct {
	id    string
	tried int // before it was taken
}

// letters is the home of what is in dead_letters. The inbox has known these
// messages since they were parked; what tells that one has taken effect is that
// its row isn't open any more.
type letters struct {
	provider uow.Provider
	stream   Stream
}

// due returns dead letters that can be handled, at most one of each held key: the
// first one, and that only if it isn't for an operator to decide. Held keys are
// found one after the other through the index, whatever is behind their first
// row.
func (h letters) due(ctx context.Context, limit int) ([]*message, error) {
	now := bun.Safe(dbtime.Now(h.provider.Reader().Dialect()))
	const ready = "status IN ('replay', 'held') AND (due_at IS NULL OR due_at <= ?)"
	var found []*message
	err := dbrows.Each(ctx, h.provider.Reader(), "WITH RECURSIVE keys(key_id) AS ("+
		" SELECT min(key_id) FROM dead_letters WHERE subscription = ? AND "+open+
		" UNION ALL SELECT (SELECT min(d.key_id) FROM dead_letters AS d WHERE d.subscription = ? AND d."+open+" AND d.key_id > k.key_id) FROM keys AS k WHERE k.key_id IS NOT NULL),"+
		" heads(seq) AS (SELECT (SELECT min(d.seq) FROM dead_letters AS d WHERE d.subscription = ? AND d.key_id = k.key_id AND d."+open+" AND d.holds) FROM keys AS k WHERE k.key_id IS NOT NULL),"+
		" loose(seq) AS (SELECT seq FROM dead_letters WHERE subscription = ? AND status = 'replay' AND NOT holds)"+
		" SELECT id, topic, partition_key, body, headers, attempts FROM dead_letters WHERE seq IN (SELECT seq FROM heads UNION ALL SELECT seq FROM loose) AND "+ready+
		" AND (taken_until IS NULL OR taken_until <= ?) ORDER BY seq LIMIT ?",
		func(scan func(...any) error) error {
			var received broker.Message
			var headers []byte
			var row parkedRow
			if err := scan(&row.id, &received.Topic, &received.Key, &received.Body, &headers, &row.tried); err != nil {
				return err
			}
			if err := json.Unmarshal(headers, &received.Headers); err != nil {
				return fmt.Errorf("headers of dead letter %s: %w", row.id, err)
			}
			received.ID = received.Headers["id"]
			m := understand(received)
			m.parked = &row
			found = append(found, m)
			return nil
		}, h.stream.Name, h.stream.Name, h.stream.Name, h.stream.Name, now, now, limit)
	if err != nil {
		return nil, fmt.Errorf("subscription: look for replays: %w", err)
	}
	return found, nil
}

// take reserves a dead letter. One that somebody has taken and not given back is
// parked again, for an operator to decide: the process may have died of it.
func (h letters) take(ctx context.Context, m *message) (ok bool, err error) {
	d := h.provider.DB().Dialect()
	now := bun.Safe(dbtime.Now(d))
	result, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET status = 'parked', reason = 'crashed', taken_until = NULL, due_at = NULL,"+
		" error = 'the process ended while it was replayed' WHERE id = ? AND status IN ('replay', 'held') AND taken_until <= ?", m.parked.id, now)
	if err == nil {
		if n, _ := result.RowsAffected(); n > 0 {
			return false, nil
		}
		result, err = h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET taken_until = ? WHERE id = ? AND status IN ('replay', 'held') AND taken_until IS NULL",
			bun.Safe(dbtime.In(d, h.stream.Timeout+takenFor)), m.parked.id)
	}
	if err != nil {
		return false, fmt.Errorf("subscription: take dead letter %s: %w", m.parked.id, err)
	}
	n, _ := result.RowsAffected()
	return n == 1, nil
}

// release gives a taken dead letter back, to be handled again after a while.
func (h letters) release(ctx context.Context, m *message, after time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	_, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET taken_until = NULL, due_at = ?, attempts = ? WHERE id = ? AND "+open,
		bun.Safe(dbtime.In(h.provider.DB().Dialect(), after)), m.parked.tried+m.attempts, m.parked.id)
	return err
}

func (h letters) look(ctx context.Context, messages []*message) (map[*message]record, error) {
	m := messages[0]
	var status string
	err := h.provider.Reader().NewRaw("SELECT status FROM dead_letters WHERE id = ?", m.parked.id).Scan(ctx, &status)
	if err != nil {
		return nil, fmt.Errorf("subscription: look for dead letter %s: %w", m.parked.id, err)
	}
	r := m.record
	r.done = status != "replay" && status != "held"
	return map[*message]record{m: r}, nil
}

// claim also sees to it that nothing before it of its key is open: it was looked
// at some time ago.
func (h letters) claim(messages []*message) []uow.Statement { return h.end(messages[0], "replayed") }

func (h letters) drop(m *message) []uow.Statement { return h.end(m, "discarded") }

func (h letters) end(m *message, status string) []uow.Statement {
	return []uow.Statement{{
		Query: bun.SafeQuery("UPDATE dead_letters SET status = ?, attempts = ?, last_at = ?, taken_until = NULL WHERE id = ? AND status IN ('replay', 'held')"+
			" AND (NOT holds OR NOT EXISTS (SELECT 1 FROM dead_letters AS e WHERE e.subscription = ? AND e.key_id = ? AND e."+open+" AND e.holds AND e.seq < dead_letters.seq))",
			status, m.parked.tried+m.attempts, bun.Safe(dbtime.Now(h.provider.DB().Dialect())), m.parked.id, h.stream.Name, m.keyID),
		Rows: 1, Else: errSettled,
	}}
}

// begin keeps others from taking the row while its handler is called.
func (h letters) begin(ctx context.Context, m *message) error {
	_, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET attempts = ?, taken_until = ? WHERE id = ? AND status IN ('replay', 'held')",
		m.parked.tried+m.attempts+1, bun.Safe(dbtime.In(h.provider.DB().Dialect(), h.stream.Timeout+takenFor)), m.parked.id)
	if err != nil {
		return fmt.Errorf("subscription: count an attempt: %w", err)
	}
	m.attempts++
	m.begun = true
	return nil
}

func (h letters) fail(_ context.Context, m *message, free bool, _ error) (int, error) {
	if free && m.begun {
		m.attempts--
	}
	m.begun = false
	return m.attempts, nil
}

func (h letters) takeBack(_ context.Context, m *message) error {
	if m.begun {
		m.attempts--
	}
	m.begun = false
	return nil
}

func (h letters) park(m *message, why reason, cause error) ([]uow.Statement, error) {
	text, typ, stack := describe(cause)
	return []uow.Statement{{
		Query: bun.SafeQuery("UPDATE dead_letters SET status = 'parked', reason = ?, error = ?, error_type = ?, stack = ?, attempts = ?, last_at = ?, due_at = NULL, taken_until = NULL"+
			" WHERE id = ? AND status IN ('replay', 'held')", string(why), text, bun.NullZero(typ), bun.NullZero(stack), m.parked.tried+m.attempts,
			bun.Safe(dbtime.Now(h.provider.DB().Dialect())), m.parked.id),
		Rows: 1, Else: errSettled,
	}}, nil
}

// replay handles dead letters that operators want handled again, and those behind
// them, until the runner stops. It needs no broker.
func (r *Runner) replay() {
	for wait := replayPoll; ; wait = min(max(2*wait, replayPoll), replayPollMax) {
		found, err := r.letters.due(r.intake, replayWave)
		if err != nil && r.intake.Err() == nil {
			r.note(err)
		}
		var wave sync.WaitGroup
		for _, m := range found {
			wave.Go(func() { r.again(m) })
		}
		wave.Wait()
		if len(found) > 0 {
			wait = 0 // There may be more: what was held behind these.
		}
		if !sleep(r.intake, wait) {
			return
		}
	}
}

// again handles one dead letter, with as many attempts as a new message has.
func (r *Runner) again(m *message) {
	ok, err := r.letters.take(r.intake, m)
	if err != nil {
		r.note(err)
	}
	if !ok {
		return
	}
	for {
		p, ok := r.valve.enter(r.intake.Done())
		if !ok {
			break
		}
		result, wait := r.attempt(r.work, p, m)
		switch result {
		case handled:
			r.replayed.Add(1)
			return
		case ignored:
			if _, err := r.park(r.work, m, parked, fmt.Errorf("subscription: this build handles no %q", m.meta.Type)); err == nil {
				return
			}
			wait = r.backoff(1)
		case dropped, duplicate, setAside:
			return
		}
		if result == delayed && wait > replayPoll {
			if err := r.letters.release(r.work, m, wait); err == nil {
				return
			}
		}
		if !sleep(r.intake, wait) {
			break
		}
	}
	if err := r.letters.release(r.work, m, 0); err != nil {
		r.note(err)
	}
}
