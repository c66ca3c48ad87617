package subscription

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

// takenFor is how long a taken dead letter is left to the run that has taken it and
// doesn't renew that: it has died, is frozen, or doesn't reach the database.
const takenFor = 30 * time.Second

// parkedRow is a dead letter that is handled again.
type parkedRow struct {
	id    string
	tried int // before this round
}

// letters is the home of what is in dead_letters. The inbox has known these
// messages since they were put there; what tells that one has taken effect is that
// its row isn't open any more. Whoever has a row in hand is named in it, and nobody
// else can end it.
type letters struct {
	provider uow.Provider
	stream   Stream
	intake   intake
	run      string
	lease    time.Duration
	able     *atomic.Pointer[[]string] // What rows need that this build reads.
}

const (
	goesOn = "status IN ('replay', 'held', 'waiting')"
	// atRest are the conditions of one that can be taken: its time has come, this build
	// reads it, and nobody has it: who has one has it for takenFor at most, and what says more is
	// from when the database's clock was wrong. One that two runs have not seen the end of is left
	// until the second is known to be gone.
	atRest = goesOn + " AND ? AND (due_at IS NULL OR due_at <= ?) AND (taken_until IS NULL OR taken_until <= ? OR taken_until > ?) AND (NOT begun OR crashes = 0 OR NOT EXISTS" +
		" (SELECT 1 FROM subscription_runs AS r WHERE r.subscription = ? AND r.run = dead_letters.run AND r.seen_at > ?))"
	letter = "id, topic, partition_key, key_id, body, headers, reason, error"
)

// resting are the arguments of atRest.
func (h letters) resting() []any {
	return []any{h.readable(), h.in(0), h.in(0), h.in(2 * takenFor), h.stream.Name, h.in(-forgetAfter)}
}

// mine restricts a search to what came by the stream of this runner: others that share
// its letters believe other things of theirs. What no stream of this build has is anybody's, to be
// parked. Older builds have kept the broker's prefix.
func (h letters) mine() (condition string, args []any) {
	if h.stream.Instances == nil {
		return "", nil
	}
	both := func(topic string) []string { return []string{topic, h.stream.prefix + topic} }
	own, all := both(h.stream.Topic()), []string(nil)
	for _, topic := range h.stream.Instances.topics {
		all = append(all, both(topic)...)
	}
	if len(all) == 0 {
		return " AND topic IN (?)", []any{bun.List(own)}
	}
	return " AND (topic IN (?) OR topic NOT IN (?))", []any{bun.List(own), bun.List(all)}
}

// in is the database's time, so much later.
func (h letters) in(after time.Duration) bun.Safe {
	return bun.Safe(dbtime.In(h.provider.DB().Dialect(), after))
}

// due returns messages that were to wait until now.
func (h letters) due(ctx context.Context, limit int) ([]*message, error) {
	mine, topic := h.mine()
	args := append(append([]any{h.stream.Letters()}, h.resting()...), topic...)
	return h.find(ctx, "SELECT "+letter+" FROM dead_letters WHERE subscription = ? AND status = 'waiting' AND "+atRest+mine+" ORDER BY due_at LIMIT ?", append(args, limit)...)
}

// heads returns dead letters that can be handled, at most one of each held key: the
// first one, and that only if it isn't for an operator to decide. Held keys are
// found one after the other through the index, whatever is behind their first
// row.
func (h letters) heads(ctx context.Context, limit int) ([]*message, error) {
	name := h.stream.Letters()
	mine, topic := h.mine()
	args := append(append([]any{name, name, name, name}, h.resting()...), topic...)
	return h.find(ctx, "WITH RECURSIVE keys(key_id) AS ("+
		" SELECT min(key_id) FROM dead_letters WHERE subscription = ? AND status IN ('held', 'replay') AND holds"+
		" UNION ALL SELECT (SELECT min(d.key_id) FROM dead_letters AS d WHERE d.subscription = ? AND d.status IN ('held', 'replay') AND d.holds AND d.key_id > k.key_id) FROM keys AS k WHERE k.key_id IS NOT NULL),"+
		" heads(seq) AS (SELECT (SELECT min(d.seq) FROM dead_letters AS d WHERE d.subscription = ? AND d.key_id = k.key_id AND d."+open+" AND d.holds) FROM keys AS k WHERE k.key_id IS NOT NULL),"+
		" loose(seq) AS (SELECT seq FROM dead_letters WHERE subscription = ? AND status = 'replay' AND NOT holds)"+
		" SELECT "+letter+" FROM dead_letters WHERE seq IN (SELECT seq FROM heads UNION ALL SELECT seq FROM loose) AND status <> 'waiting' AND "+atRest+mine+" ORDER BY seq LIMIT ?",
		append(args, limit)...)
}

// following returns the first of m's key, if that can be handled.
func (h letters) following(ctx context.Context, m *message) (*message, error) {
	mine, topic := h.mine()
	args := append(append([]any{h.stream.Letters(), m.keyID}, h.resting()...), topic...)
	found, err := h.find(ctx, "SELECT "+letter+" FROM dead_letters WHERE seq = (SELECT min(d.seq) FROM dead_letters AS d WHERE d.subscription = ? AND d.key_id = ? AND d."+open+" AND d.holds) AND "+atRest+mine, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func (h letters) find(ctx context.Context, query string, args ...any) (found []*message, err error) {
	err = dbrows.Each(ctx, h.provider.Reader(), query, func(scan func(...any) error) error {
		var received broker.Message
		var headers []byte
		var why reason
		var said string
		var row parkedRow
		var keyID string
		if err := scan(&row.id, &received.Topic, &received.Key, &keyID, &received.Body, &headers, &why, &said); err != nil {
			return err
		}
		if err := putBack(&received, headers); err != nil {
			return fmt.Errorf("headers of dead letter %s: %w", row.id, err)
		}
		received.Topic = h.stream.received(received.Topic)
		m := h.intake.understand(received)
		m.keyID = keyID                              // Of the key as it came: the row's may be a cleaned one.
		if why == tooLarge && received.Body == nil { // which was not kept
			m.fault, m.bad = why, errors.New(said)
		}
		m.parked = &row
		found = append(found, m)
		return nil
	}, args...)
	if err != nil {
		return nil, fmt.Errorf("subscription: look for replays: %w", err)
	}
	return found, nil
}

// take reserves a dead letter for this run. If another run had begun with it and
// didn't end, that is noted: the process may have died of it.
func (h letters) take(ctx context.Context, m *message) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	args := append([]any{h.run, h.in(h.lease), h.in(0), m.parked.id}, h.resting()...)
	err = h.provider.DB().NewRaw("UPDATE dead_letters SET run = ?, taken_until = ?, begun = FALSE,"+
		" due_at = CASE WHEN begun THEN ? ELSE due_at END,"+
		" crashes = CASE WHEN begun THEN crashes + 1 WHEN status = 'replay' THEN 0 ELSE crashes END,"+
		" tried = CASE WHEN status = 'replay' AND NOT begun THEN attempts ELSE tried END,"+
		" status = CASE WHEN begun THEN 'waiting' ELSE status END"+
		" WHERE id = ? AND "+atRest+" RETURNING attempts - tried, tried, crashes", args...).Scan(ctx, &m.attempts, &m.parked.tried, &m.crashes)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("subscription: take dead letter %s: %w", m.parked.id, err)
	}
	return true, nil
}

// renew keeps what this run has in hand from others.
func (h letters) renew(ctx context.Context, ids []string) error {
	_, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET taken_until = ? WHERE id IN (?) AND run = ? AND taken_until IS NOT NULL", h.in(h.lease), bun.List(ids), h.run)
	if err != nil {
		return fmt.Errorf("subscription: keep dead letters that are handled: %w", err)
	}
	return nil
}

// release gives a taken dead letter back, to be handled again after a while: by
// whoever comes first.
func (h letters) release(ctx context.Context, m *message, after time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	status := "status"
	if after > 0 {
		status = "'waiting'"
	}
	_, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET status = "+status+", run = NULL, taken_until = NULL, attempts = attempts - CASE WHEN begun THEN 1 ELSE 0 END, begun = FALSE, due_at = ?"+
		" WHERE id = ? AND run = ? AND "+goesOn, h.in(after), m.parked.id, h.run)
	if err != nil {
		return fmt.Errorf("subscription: give dead letter %s back: %w", m.parked.id, err)
	}
	return nil
}

// look also says done of what another run has: it is none of this one's business.
func (h letters) look(ctx context.Context, messages []*message) (map[*message]record, error) {
	m := messages[0]
	r := m.record
	err := h.provider.Reader().NewRaw("SELECT NOT ("+goesOn+") OR run IS NULL OR run <> ? FROM dead_letters WHERE id = ?", h.run, m.parked.id).Scan(ctx, &r.done)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		r.done = true
	case err != nil:
		return nil, fmt.Errorf("subscription: look for dead letter %s: %w", m.parked.id, err)
	}
	return map[*message]record{m: r}, nil
}

// claim also sees to it that nothing before it of its key is open, and that it is
// this run's: it was looked at some time ago.
func (h letters) claim(messages []*message) []uow.Statement { return h.end(messages[0], "replayed") }

func (h letters) drop(m *message) []uow.Statement { return h.end(m, "discarded") }

func (h letters) end(m *message, status string) []uow.Statement {
	return []uow.Statement{{
		Query: bun.SafeQuery("UPDATE dead_letters SET status = ?, last_at = ?, run = NULL, begun = FALSE, taken_until = NULL, due_at = NULL WHERE id = ? AND run = ? AND "+goesOn+
			" AND (NOT holds OR NOT EXISTS (SELECT 1 FROM dead_letters AS e WHERE e.subscription = ? AND e.key_id = ? AND e."+open+" AND e.holds AND e.seq < dead_letters.seq))",
			status, h.in(0), m.parked.id, h.run, h.stream.Letters(), m.keyID),
		Rows: 1, Else: errSettled,
	}}
}

// begin counts the attempt, unless the row has been taken by another run.
func (h letters) begin(ctx context.Context, m *message) error {
	err := h.provider.DB().NewRaw("UPDATE dead_letters SET attempts = attempts + 1, begun = TRUE, taken_until = ? WHERE id = ? AND run = ? AND "+goesOn+" RETURNING attempts - tried",
		h.in(h.lease), m.parked.id, h.run).Scan(ctx, &m.attempts)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return errSettled
	case err != nil:
		return fmt.Errorf("subscription: count an attempt: %w", err)
	}
	m.begun = true
	return nil
}

func (h letters) fail(ctx context.Context, m *message, free bool, cause error) (attempts int, err error) {
	more := 1
	if free {
		more--
	}
	if m.begun {
		more--
	}
	err = h.provider.DB().NewRaw("UPDATE dead_letters SET attempts = attempts + ?, begun = FALSE, last_at = ?, error = ? WHERE id = ? AND run = ? AND "+goesOn+" RETURNING attempts - tried",
		more, h.in(0), dberr.Clip(cause.Error()), m.parked.id, h.run).Scan(ctx, &attempts)
	if err != nil {
		return 0, fmt.Errorf("subscription: count a failed attempt: %w", err)
	}
	m.begun = false
	return attempts, nil
}

// takeBack also clears a run of suspicion that others have taken for dead.
func (h letters) takeBack(ctx context.Context, m *message) error {
	if !m.begun {
		return nil
	}
	m.begun = false
	m.attempts = max(m.attempts-1, 0)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	_, err := h.provider.DB().ExecContext(ctx, "UPDATE dead_letters SET attempts = attempts - 1, crashes = crashes - CASE WHEN run = ? THEN 0 ELSE 1 END,"+
		" begun = begun AND COALESCE(run <> ?, TRUE) WHERE id = ? AND attempts > 0 AND (run = ? AND begun OR COALESCE(run <> ?, TRUE) AND crashes > 0) AND "+goesOn,
		h.run, h.run, m.parked.id, h.run, h.run)
	if err != nil {
		return fmt.Errorf("subscription: take an attempt back: %w", err)
	}
	return nil
}

// early puts m back to wait for what it needs.
func (h letters) early(m *message, cause error, patience time.Duration) ([]uow.Statement, error) {
	text, typ, _ := describe(cause)
	return []uow.Statement{{
		Query: bun.SafeQuery("UPDATE dead_letters SET status = 'early', holds = FALSE, reason = 'early', needs = NULL, error = ?, error_type = ?, stack = NULL, attempts = tried, last_at = ?, run = NULL, begun = FALSE, due_at = ?, taken_until = NULL"+
			" WHERE id = ? AND run = ? AND "+goesOn, text, bun.NullZero(typ), h.in(0), h.in(patience), m.parked.id, h.run),
		Rows: 1, Else: errSettled,
	}}, nil
}

// park ends the round. Under Skip nothing waits for the message any longer.
func (h letters) park(m *message, why reason, cause error) ([]uow.Statement, error) {
	text, typ, stack := describe(cause)
	holds := "holds"
	if h.stream.OnParked == Skip {
		holds = "FALSE"
	}
	return []uow.Statement{{
		Query: bun.SafeQuery("UPDATE dead_letters SET status = 'parked', holds = "+holds+", reason = ?, needs = ?, error = ?, error_type = ?, stack = ?, attempts = ?, last_at = ?, run = NULL, begun = FALSE, due_at = NULL, taken_until = NULL"+
			" WHERE id = ? AND run = ? AND "+goesOn, string(why), m.need(why, cause), text, bun.NullZero(typ), bun.NullZero(stack), m.parked.tried+m.attempts,
			h.in(0), m.parked.id, h.run),
		Rows: 1, Else: errSettled,
	}}, nil
}
