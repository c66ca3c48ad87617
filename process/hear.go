package process

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	// maxID is how long an identity may be, in bytes: it is in an index.
	maxID = 255
	// lastHeard is how many messages a process's row names.
	lastHeard               = 20
	awaited, running, ended = "awaited", "running", "ended"
)

// errMet is two messages that met at the beginning of a process: the second one is
// handled again, and finds it begun.
var errMet = errors.New("process: another message has begun it, or ended it, meanwhile")

// message is one that a process hears.
type message struct {
	id               string
	starts, optional bool
	timer            bool
	call             func(domain.ProcessState) error
}

// row is what is stored of a process.
type row struct {
	version int64
	status  string // "": there is none
	early   bool
	state   []byte
	form    int
	heard   []Heard
}

// hear handles a message in the unit of ctx. All units of one process lock its row first,
// so they follow one another.
func (p *process) hear(ctx context.Context, m message) error {
	if err := p.check(m.id); err != nil {
		return subscription.Park(err)
	}
	db, err := uow.DB(ctx)
	if err != nil {
		return err
	}
	r, err := p.lock(ctx, db, m.id)
	if err != nil {
		return err
	}
	if m.timer {
		if waits, err := p.waits(ctx, db); err != nil || !waits {
			return err
		}
	}
	switch {
	case r.status == ended, r.status != running && m.optional:
		return counted(ctx, &p.ignored)
	case r.status != running && !m.starts:
		return p.tooEarly(ctx, m)
	case r.status == running && r.early:
		// What came early goes first; it was given its turn behind this row's lock.
		left, err := p.instances.Turn(ctx, db, m.id)
		if err != nil {
			return err
		}
		r.early = left > 0
	}
	if r.status != running {
		r.state = nil // It begins.
	}
	s, err := p.decode(m.id, domain.Now(ctx), r)
	if err != nil {
		return subscription.Park(err)
	}
	if err := m.call(s); err != nil {
		return err
	}
	return p.save(ctx, m, r, s)
}

func (p *process) check(id string) error {
	switch problem := dbtext.KeyProblem(id); {
	case id == "":
		return fmt.Errorf("process: the message doesn't say which %s it concerns: its identity is empty", p.typ.Name)
	case len(id) > maxID:
		return fmt.Errorf("process: the identity of a %s has %d bytes: at most %d", p.typ.Name, len(id), maxID)
	case problem != "":
		return fmt.Errorf("process: the identity %.60q of a %s %s", id, p.typ.Name, problem)
	}
	return nil
}

// lock reads a process's row, and locks it until the unit ends. SQLite has one writer.
func (p *process) lock(ctx context.Context, db bun.IDB, id string) (r row, err error) {
	query := "SELECT version, status, early, COALESCE(state, 'null'), state_version, heard FROM processes WHERE process = ? AND id = ?"
	if db.Dialect().Name() == dialect.PG {
		query += " FOR UPDATE"
	}
	var told []byte
	switch err := db.NewRaw(query, p.name, id).Scan(ctx, &r.version, &r.status, &r.early, &r.state, &r.form, &told); {
	case errors.Is(err, sql.ErrNoRows):
		return r, nil
	case err != nil:
		return r, fmt.Errorf("process: read %s %q: %w", p.typ.Name, id, err)
	}
	if err := json.Unmarshal(told, &r.heard); err != nil {
		return r, fmt.Errorf("process: what %s %q has heard is not what was stored: %w", p.typ.Name, id, err)
	}
	return r, nil
}

// decode makes a process of what is stored.
func (p *process) decode(id string, now time.Time, r row) (domain.ProcessState, error) {
	if r.state == nil || string(r.state) == "null" {
		return p.typ.New(id, now), nil
	}
	state, unknown, err := p.typ.State.Decode(id, r.state, r.form)
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	s := state.(domain.ProcessState)
	*rootstate.OfProcess(s) = rootstate.Process{ID: id, Now: now.UTC(), Form: r.form, Unknown: unknown}
	return s, nil
}

// tooEarly has the message set aside. The row, which is there from then on, is what the
// event that begins the process and this message meet at: whoever comes second sees the
// other.
func (p *process) tooEarly(ctx context.Context, m message) error {
	meta, _ := domain.MetadataFrom(ctx)
	why := &NotStartedError{Process: p.typ.Name, ID: m.id, Type: meta.Type}
	for _, h := range p.typ.Heard() {
		if h.Starts {
			why.Starts = append(why.Starts, h.Event.ShortName())
		}
	}
	return subscription.Early(why, p.Patience, func(ctx context.Context) error {
		u, err := uow.From(ctx)
		if err != nil {
			return err
		}
		d := p.provider().DB().Dialect()
		err = u.Change("INSERT INTO processes AS p (process, id, version, status, early, forget_at) VALUES (?, ?, 0, 'awaited', TRUE, "+dbtime.In(d, p.Retention)+")"+
			" ON CONFLICT (process, id) DO UPDATE SET early = TRUE, forget_at = excluded.forget_at, last_at = "+dbtime.Now(d)+" WHERE p.status = 'awaited'",
			[]any{p.name, m.id}, 1, subscription.ErrArrived)
		if err != nil {
			return err
		}
		return counted(ctx, &p.early)
	})
}

// save stores what the process remembers and does.
func (p *process) save(ctx context.Context, m message, r row, s domain.ProcessState) error {
	u, err := uow.From(ctx)
	if err != nil {
		return err
	}
	acts := rootstate.OfProcess(s)
	if err := p.act(ctx, u, m.id, acts); err != nil {
		return err
	}
	state, form, err := p.typ.State.Encode(s, acts.Form, acts.Unknown)
	if err != nil {
		return fmt.Errorf("process: the state of %s %q can't be stored: %w", p.typ.Name, m.id, err)
	}
	meta, _ := domain.MetadataFrom(ctx)
	r.heard = append(r.heard, Heard{At: domain.Now(ctx), Type: meta.Type, ID: meta.ID})
	told, err := json.Marshal(r.heard[max(len(r.heard)-lastHeard, 0):])
	if err != nil {
		return err
	}
	d := p.provider().DB().Dialect()
	now, forget, over, status := dbtime.Now(d), "NULL", "NULL", running
	if acts.Ended {
		forget, over, status = dbtime.In(d, p.Retention), now, ended
	}
	if r.status == "" {
		err = u.Change("INSERT INTO processes (process, id, version, status, state, state_version, heard, ended_at, forget_at)"+
			" VALUES (?, ?, 1, ?, ?, ?, ?, "+over+", "+forget+") ON CONFLICT DO NOTHING",
			[]any{p.name, m.id, status, string(state), form, string(told)}, 1, subscription.RetryAfter(errMet, time.Millisecond))
	} else {
		began := "began_at"
		if r.status == awaited {
			began = now
		}
		err = u.Change("UPDATE processes SET version = version + 1, status = ?, state = ?, state_version = ?, heard = ?, early = ?, began_at = "+began+","+
			" last_at = "+now+", ended_at = "+over+", forget_at = "+forget+" WHERE process = ? AND id = ? AND version = ?",
			[]any{status, string(state), form, string(told), r.early, p.name, m.id, r.version}, 1, subscription.RetryAfter(errMet, time.Millisecond))
	}
	if err != nil {
		return err
	}
	if r.status == awaited {
		if err := u.Exec("", p.instances.Arrived(d, m.id)); err != nil {
			return err
		}
	}
	u.AfterCommit(func(context.Context) {
		p.heard.Add(1)
		if r.status != running {
			p.started.Add(1)
		}
		if r.status == awaited {
			p.instances.Wake()
		}
		if acts.Ended {
			p.counters.ended.Add(1)
		}
	})
	return nil
}

// act sends commands, and sets and stops timers.
func (p *process) act(ctx context.Context, u *uow.Unit, id string, acts *rootstate.Process) error {
	for _, c := range acts.Sent {
		t, err := p.units.Domain().CommandTypeOf(c)
		if err != nil {
			return fmt.Errorf("process: %s %q sends what is no command: %w", p.typ.Name, id, err)
		}
		o := uow.CommandOptions{}
		if p.typ.Refusal(t) != nil {
			o.Reply = processmsg.Address(p.typ.Context, p.typ.Name, id)
		}
		if err := u.Send(ctx, c, o); err != nil {
			return err
		}
	}
	owner := p.owner(id)
	for _, t := range acts.Timers {
		switch {
		case p.typ.OnTimer(t.Name) == nil:
			return fmt.Errorf("process: %s %q has no timer %q: declare domain.OnTimer(%q, …)", p.typ.Name, id, t.Name, t.Name)
		case t.Stop:
			if err := u.StopTimer(owner, t.Name); err != nil {
				return err
			}
		case t.At.IsZero():
			return fmt.Errorf("process: %s %q: timer %q has no time: say when it is due", p.typ.Name, id, t.Name)
		case !acts.Ended:
			err := u.SetTimer(ctx, owner, t.Name, t.At, uow.Message{
				Type: processmsg.WireName(processmsg.TimerDueName), Category: processmsg.Category(p.typ.Context), Key: processmsg.Key(p.typ.Name, id),
				Data: processmsg.TimerDue{Process: p.typ.Name, ID: id, Timer: t.Name},
			})
			if err != nil {
				return err
			}
		}
	}
	if acts.Ended {
		return u.StopTimer(owner, "")
	}
	return nil
}

// owner is that of a process's timers.
func (p *process) owner(id string) string { return Owner(p.name, id) }

// Owner is in the table of timers whose they are: name is the process's, as in
// "library.lending".
func Owner(name, id string) string {
	context, process, _ := strings.Cut(name, ".")
	return processmsg.Category(context) + "-" + processmsg.Key(process, id)
}

func (p *process) provider() uow.Provider { return p.units.Providers()[0] }

// due hears that a timer rings.
func (p *process) due(ctx context.Context, t processmsg.TimerDue) error {
	meta, _ := domain.MetadataFrom(ctx)
	if meta.Context != p.typ.Context || meta.Command == nil || !meta.Command.Timer {
		return subscription.Park(fmt.Errorf("process: the message says that a timer of %s %q is due and comes from context %.100q: only %s may send it; discard it", t.Process, t.ID, meta.Context, p.typ.Context))
	}
	ring := p.typ.OnTimer(t.Timer)
	if ring == nil { // If it still matters to the process, it is for a build that has it.
		ring = func(any) error { return &processmsg.UnheardError{Process: p.name, Timer: t.Timer} }
	}
	return p.hear(ctx, message{id: t.ID, optional: true, timer: true, call: func(s domain.ProcessState) error { return ring(s) }})
}

// waits says whether the timer of a message is still there. It is then deleted with what
// the process does; if somebody, such as an operator, has stopped it meanwhile, nothing
// commits, and the next look ends the message.
func (p *process) waits(ctx context.Context, db bun.IDB) (bool, error) {
	meta, _ := domain.MetadataFrom(ctx)
	there, err := timerdb.Waits(ctx, db, meta.ID)
	if err != nil {
		return false, err
	}
	if !there {
		return false, counted(ctx, &p.stopped)
	}
	u, err := uow.From(ctx)
	if err != nil {
		return false, err
	}
	return true, u.TimerHandled(uow.Statement{Query: timerdb.Handled(meta.ID), Rows: 1, Else: subscription.RetryAfter(errMet, time.Millisecond)})
}

// refused hears that a command was refused. The process has asked for that, so if this
// build doesn't hear it another one does.
func (p *process) refused(ctx context.Context, r processmsg.Refused) error {
	for _, h := range p.typ.Heard() {
		if h.Refused == nil || h.Refused.Name != baseName(r.Command) {
			continue
		}
		if err := counted(ctx, &p.counters.refused); err != nil {
			return err
		}
		return p.hear(ctx, message{id: r.ID, optional: true, call: func(s domain.ProcessState) error { return h.CallRefused(s, r.Data, r.Reason) }})
	}
	unheard := &processmsg.UnheardError{Process: p.name, Command: clipped(baseName(r.Command))}
	return p.hear(ctx, message{id: r.ID, optional: true, call: func(domain.ProcessState) error { return unheard }})
}

// clipped is a name that another context has sent, as an index can have it.
func clipped(name string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(name[:min(len(name), maxID)], ""), "\x00", "")
}

// counted counts once the unit of ctx is committed: until then it may be done again.
func counted(ctx context.Context, n *atomic.Int64) error {
	u, err := uow.From(ctx)
	if err == nil {
		u.AfterCommit(func(context.Context) { n.Add(1) })
	}
	return err
}

// baseName is a wire name without its version.
func baseName(wire string) string {
	end := strings.LastIndex(wire, ".v")
	return wire[:cmp.Or(max(end, 0), len(wire))]
}
