package outbox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
)

// Backfill says what a back-fill copies, and for whom.
type Backfill struct {
	// Context is whose events. Required.
	Context string
	// Target is who is joining, with everything that its rows depend on: the same
	// that the context's programs have. Required.
	Target Target
	// Actor is who asks, for the record. Required, but for a count.
	Actor string
	// Domain is the context's, for a target that gets older versions of events than were
	// stored. Without it, such an event is an error.
	Domain *domain.Domain
	// Published are the short names of the context's published events. Nil: as its
	// programs have written them into the database, by engine.Migrate or at the
	// start of an engine.
	Published []string
	// Renamed are names under which these events were stored before, such as
	// "Library.BookLent", with the short names that they have now. Nil: as Published, if
	// that is nil.
	Renamed map[string]string
	// FromHistory copies all events that the context has kept, and not only those that are
	// still in the outbox; before them what the outbox has from before the history began. It
	// counts when a back-fill begins: one that is run again goes on as it began.
	FromHistory bool
	// Progress is called after each transaction. waits says what is being waited
	// for; "" if nothing is. May be nil.
	Progress func(done Backfilled, waits string)
}

// Wants says whether the target gets an event, by the name that it had when it was
// raised.
func (b Backfill) Wants(wireName string) bool {
	t := eventCalled(wireName, b.Renamed)
	return slices.Contains(b.Published, t.ShortName()) && b.Target.wants(t)
}

// eventCalled is an event by the name with which it was stored; if it was renamed since,
// under the one that it has now: that is the one that targets name.
func eventCalled(wireName string, renamed map[string]string) *domain.EventType {
	t := &domain.EventType{Name: wireName, Published: true}
	if i := strings.LastIndex(wireName, ".v"); i > 0 {
		t.Name = wireName[:i]
	}
	t.Name = cmp.Or(renamed[t.Name], t.Name)
	return t
}

// Copy makes an event's row for the target, of its key and the body that own, the
// context's own broker, got. The target must want it.
func (b Backfill) Copy(own, wireName, key string, body []byte, partitions int) (Row, error) {
	e := Event{Key: key}
	var err error
	if e.Metadata, e.Data, err = ParseEnvelope(body); err != nil {
		return Row{}, err
	}
	return b.CopyEvent(own, &e, partitions)
}

// CopyEvent makes a kept event's row for the target, which must want it.
func (b Backfill) CopyEvent(own string, e *Event, partitions int) (Row, error) {
	writer := Writer{Domain: b.Domain, Internal: own, External: []Target{b.Target}}
	rows, err := writer.again(e, eventCalled(e.Type, b.Renamed), partitions)
	if err != nil {
		return Row{}, err
	}
	return rows[1], nil // the first is for the context's own broker
}

// Backfilled is what was copied so far.
type Backfilled struct {
	Events         int64     // By this call.
	Oldest, Latest time.Time // When the first and the last of them were raised; zero if there is none.
	// Abandoned have a row that was given up when the target was one before. It stays, and
	// an operator decides about it: it would be published behind those that follow.
	Abandoned int64
}

// Add adds what was copied elsewhere.
func (d *Backfilled) Add(o Backfilled) {
	d.Abandoned += o.Abandoned
	if o.Events > 0 {
		d.Events += o.Events
		d.note(o.Oldest)
		d.note(o.Latest)
	}
}

// Note takes the time of an event into account that was copied.
func (d *Backfilled) Note(raised time.Time) {
	d.Events++
	d.note(raised)
}

// note takes the time of an event into account.
func (d *Backfilled) note(raised time.Time) {
	if d.Oldest.IsZero() || raised.Before(d.Oldest) {
		d.Oldest = raised
	}
	if raised.After(d.Latest) {
		d.Latest = raised
	}
}

// NotATargetError is a broker to which the database says that the context doesn't
// send.
type NotATargetError struct {
	Context, Target string
	Have            Targets
}

func (e *NotATargetError) Error() string {
	return fmt.Sprintf("outbox: in the database context %s sends to %v and not to %s: stop all its processes, run `waybill migrate --set-targets %s=%v,%s --history copy`, and start them with %s in their configuration",
		e.Context, e.Have, e.Target, e.Context, e.Have, e.Target, e.Target)
}
