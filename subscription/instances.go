package subscription

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// Instances make the messages of several streams those of instances, such as processes,
// that each hear messages of all of them: what is parked or set aside of an instance,
// whichever stream it came by, is in one row of dead letters, and the instance takes the
// place of the message's key. Each stream has a consumer group and an inbox of its own,
// as a message comes by one stream.
//
// For package process.
type Instances struct {
	letters string
	of      func(event any) (id string, ok bool)
	field   string
	topics  []string // by which messages come in this build; nil: nothing is said

	mu      sync.Mutex
	runners map[*Runner]bool
}

// NewInstances makes instances whose dead letters are those of the subscription of that
// name. of says which instance an event concerns; not ok: none of these. field is the
// JSON field that says it of an event that this build can't decode; "": nothing does.
func NewInstances(letters, field string, of func(event any) (id string, ok bool)) *Instances {
	return &Instances{letters: letters, field: field, of: of, runners: map[*Runner]bool{}}
}

// From says by which topics messages of the instances come in this build. What is set aside of
// another topic, as of a stream that only another build reads, is parked for such a build:
// nobody else would take it, and what is behind it would wait without an end. Call it before
// streams run.
func (in *Instances) From(topics ...string) { in.topics = topics }

// Letters is the name under which a stream's dead letters are kept: its own, unless it
// has Instances.
func (s Stream) Letters() string {
	if s.Instances != nil {
		return s.Instances.letters
	}
	return s.Name
}

// assign gives m the key of the instance that it concerns. One that nobody can decode
// has a key of its own, unless its data says whose it is.
func (r *Runner) assign(m *message) {
	in := r.stream.Instances
	if in == nil {
		return
	}
	key := m.id
	if m.bad == nil && r.handles(m.meta.Type) {
		var event any
		err := protect(func() (err error) {
			event, err = r.stream.Units.Domain().Decode(m.meta.Type, m.data)
			return err
		})
		if err != nil {
			key = cmp.Or(in.said(m.data), key)
		} else if failed := protect(func() error { // The handler meets that panic, too.
			id, ok := in.of(event)
			m.stray = !ok
			key = cmp.Or(id, key)
			return nil
		}); failed != nil {
			key = m.id
		}
	}
	m.key, m.keyID = key, indexable(key)
}

// said is what the field of data says.
func (in *Instances) said(data json.RawMessage) (id string) {
	var fields map[string]json.RawMessage
	if in.field != "" && json.Unmarshal(data, &fields) == nil {
		_ = json.Unmarshal(fields[in.field], &id)
	}
	return id
}

// Early says that the message came before what it waits for, because of err: it is set
// aside without an attempt, nobody waits for it, and [Instances.Arrived] lets it be
// handled. effect is called in the unit of work that sets it aside, and returns
// [ErrArrived] if that has happened meanwhile. From patience on it counts as parked.
func Early(err error, patience time.Duration, effect func(ctx context.Context) error) error {
	return &earlyError{err, patience, effect}
}

// ErrArrived is what the effect of [Early] says if the message isn't early any more: it
// is handled again at once. [Instances.Turn] says it of one whose turn it is not any more.
var ErrArrived = errors.New("subscription: what the message waits for has happened, or it isn't its turn")

type earlyError struct {
	err      error
	patience time.Duration
	effect   func(ctx context.Context) error
}

func (e *earlyError) Error() string { return e.err.Error() }
func (e *earlyError) Unwrap() error { return e.err }

// Arrived is the statement that lets what came early for an instance be handled, in the
// order in which it came, before all that comes now. Wake the runners behind its commit.
func (in *Instances) Arrived(d schema.Dialect, id string) uow.Statement {
	lock := ""
	if d.Name() == dialect.PG {
		lock = " FOR UPDATE" // In the order in which operators lock them.
	}
	return uow.Statement{
		Query: bun.SafeQuery("UPDATE dead_letters SET status = 'replay', holds = TRUE, due_at = NULL WHERE seq IN"+
			" (SELECT seq FROM dead_letters WHERE subscription = ? AND key_id = ? AND status = 'early' ORDER BY seq"+lock+")", in.letters, indexable(id)),
		Rows: -1,
	}
}

// Turn says whether the message that ctx is for may be handled: nothing of its instance
// is set aside that came before it. It is asked behind the lock by which [Instances.Arrived]
// and the message are one after the other, and fails with ErrArrived. left is how much
// else of the instance is set aside.
func (in *Instances) Turn(ctx context.Context, db bun.IDB, id string) (left int, err error) {
	letter, _ := ctx.Value(replayedKey{}).(string)
	var before int
	err = db.NewRaw("SELECT count(*), count(CASE WHEN m.seq IS NULL OR d.seq < m.seq THEN 1 END) FROM dead_letters AS d"+
		" LEFT JOIN dead_letters AS m ON m.id = ? WHERE d.subscription = ? AND d.key_id = ? AND "+isOpen+" AND d.holds",
		bun.NullZero(letter), in.letters, indexable(id)).Scan(ctx, &left, &before)
	switch {
	case err != nil:
		return 0, errors.Join(errors.New("subscription: look for what is set aside"), err)
	case before > 0:
		return left, ErrArrived
	}
	return left, nil
}

// Wake has the runners of this process look for what they may handle now.
func (in *Instances) Wake() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for r := range in.runners {
		signal(r.woken)
	}
}

func (in *Instances) add(r *Runner) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.runners[r] = true
}

func (in *Instances) remove(r *Runner) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.runners, r)
}

// early sets m aside and has the effect of that, both or neither.
func (r *Runner) early(ctx context.Context, m *message, e *earlyError) (outcome, error) {
	if m.parked == nil {
		if _, err := r.room.left(ctx); err != nil {
			return failed, err
		}
	}
	statements, err := r.home(m).early(m, e.err, e.patience)
	if err == nil {
		err = protect(func() error {
			return r.stream.Units.Do(domain.WithMetadata(ctx, m.meta), func(ctx context.Context) error {
				if err := r.guard(ctx, statements...); err != nil {
					return err
				}
				return e.effect(ctx)
			})
		})
	}
	if err != nil {
		return failed, err
	}
	if m.parked == nil {
		r.room.add(1)
	}
	r.log.Debug("message came before what it waits for, and is set aside", "id", m.id, "type", m.meta.Type, "key", m.key, "error", e.err)
	return postponed, nil
}
