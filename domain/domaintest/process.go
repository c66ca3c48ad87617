package domaintest

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
)

// ProcessScenario is a test of one process. Make one with [GivenProcess].
type ProcessScenario[P domain.ProcessState] struct {
	t      testing.TB
	d      *domain.Domain
	typ    *domain.ProcessType
	p      P
	now    time.Time
	begun  bool
	ended  bool
	sent   []any
	timers map[string]time.Time
	err    error
}

// GivenProcess starts from a process that has heard these messages, at a time: events,
// own or foreign, and domain.Refusal values. What it did on the way is past, but for the
// timers that wait.
func GivenProcess[P domain.ProcessState](t testing.TB, d *domain.Domain, now time.Time, heard ...any) *ProcessScenario[P] {
	t.Helper()
	typ, err := domain.ProcessTypeFor[P](d)
	if err != nil {
		t.Fatal(err)
	}
	s := &ProcessScenario[P]{t: t, d: d, typ: typ, now: now, timers: map[string]time.Time{}}
	for _, m := range heard {
		s.When(m)
	}
	s.succeeded()
	s.sent = nil
	return s
}

// At moves the clock that the process sees.
func (s *ProcessScenario[P]) At(now time.Time) *ProcessScenario[P] {
	s.now = now
	return s
}

// When lets the process hear a message. One that has ended hears nothing, as at run time.
// One that has not begun has to begin with it, or be told optional ones, which it
// doesn't hear.
func (s *ProcessScenario[P]) When(message any) *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	h, err := s.typ.HeardBy(message)
	if err != nil {
		s.t.Fatal(err)
	}
	switch {
	case s.ended, !s.begun && h.Optional:
		return s
	case !s.begun && !h.Starts:
		s.t.Fatalf("process %q has not begun, and %T doesn't begin it: it would wait", s.typ.Name, message)
	case !s.begun:
		s.p = s.typ.New(h.Instance(message), s.now).(P)
	case h.Event != nil && h.Instance(message) != s.p.ID():
		s.t.Fatalf("%#v is for %s %q, and this one is %q", message, s.typ.Name, h.Instance(message), s.p.ID())
	}
	s.act(func(p P) error { return h.Call(p, message) })
	return s
}

// WhenDue lets a timer ring. One that isn't set fails the test. The process sees the time
// for which it was set, unless At has gone beyond.
func (s *ProcessScenario[P]) WhenDue(timer string) *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	at, set := s.timers[timer]
	if !set {
		s.t.Fatalf("the timer %q is not set", timer)
	}
	if at.After(s.now) {
		s.now = at
	}
	delete(s.timers, timer)
	ring := s.typ.OnTimer(timer)
	s.act(func(p P) error { return ring(p) })
	return s
}

// act calls the process with the state that would be stored in between.
func (s *ProcessScenario[P]) act(call func(P) error) {
	s.t.Helper()
	stored, err := json.Marshal(s.p)
	if err != nil {
		s.t.Fatalf("the state can't be stored: %v", err)
	}
	id := s.p.ID()
	p := s.typ.New(id, s.now).(P)
	if s.begun {
		if err := json.Unmarshal(stored, p); err != nil {
			s.t.Fatalf("the state can't be decoded: %v", err)
		}
	}
	if s.err = call(p); s.err != nil {
		return // Nothing of it remains.
	}
	s.p, s.begun = p, true
	acts := rootstate.OfProcess(p)
	for _, c := range acts.Sent {
		if _, err := s.d.CommandTypeOf(c); err != nil {
			s.t.Error(err)
		}
		s.sent = append(s.sent, c)
	}
	for _, timer := range acts.Timers {
		switch {
		case s.typ.OnTimer(timer.Name) == nil:
			s.t.Errorf("process %q has no timer %q: declare domain.OnTimer(%q, …)", s.typ.Name, timer.Name, timer.Name)
		case timer.Stop:
			delete(s.timers, timer.Name)
		case timer.At.IsZero():
			s.t.Errorf("process %q: timer %q has no time: say when it is due", s.typ.Name, timer.Name)
		default:
			s.timers[timer.Name] = timer.At
		}
	}
	if acts.Ended {
		s.ended = true
		clear(s.timers)
	}
}

func (s *ProcessScenario[P]) succeeded() {
	s.t.Helper()
	if s.err != nil {
		s.t.Fatalf("unexpected error: %v", s.err)
	}
}

// ThenSent fails the test unless exactly these commands were sent since the last
// ThenSent, in this order.
func (s *ProcessScenario[P]) ThenSent(want ...any) *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	for i := range max(len(s.sent), len(want)) {
		switch {
		case i >= len(s.sent):
			s.t.Errorf("command %d is missing: %#v", i+1, want[i])
		case i >= len(want):
			s.t.Errorf("command %d is unexpected: %#v", i+1, s.sent[i])
		case !reflect.DeepEqual(s.sent[i], want[i]):
			s.t.Errorf("command %d:\n got %#v\nwant %#v", i+1, s.sent[i], want[i])
		}
	}
	s.sent = nil
	return s
}

// ThenTimer fails the test unless a timer waits for a time.
func (s *ProcessScenario[P]) ThenTimer(name string, at time.Time) *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	switch got, set := s.timers[name]; {
	case !set:
		s.t.Errorf("the timer %q is not set", name)
	case !got.Equal(at):
		s.t.Errorf("timer %q:\n got %v\nwant %v", name, got, at)
	}
	return s
}

// ThenNoTimer fails the test if a timer waits.
func (s *ProcessScenario[P]) ThenNoTimer(name string) *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	if at, set := s.timers[name]; set {
		s.t.Errorf("the timer %q is set, for %v", name, at)
	}
	return s
}

// ThenState fails the test if what the process remembers is not as check wants it.
func (s *ProcessScenario[P]) ThenState(check func(P) error) *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	if err := check(s.p); err != nil {
		s.t.Error(err)
	}
	return s
}

// ThenEnded fails the test unless the process has ended.
func (s *ProcessScenario[P]) ThenEnded() *ProcessScenario[P] {
	s.t.Helper()
	s.succeeded()
	if !s.ended {
		s.t.Error("the process goes on")
	}
	return s
}

// ThenError fails the test unless the last message or timer failed with target, as
// errors.Is sees it. Nothing of what the process did then remains.
func (s *ProcessScenario[P]) ThenError(target error) *ProcessScenario[P] {
	s.t.Helper()
	if !errors.Is(s.err, target) {
		s.t.Errorf("got the error %v, want %v", s.err, target)
	}
	s.err = nil
	return s
}
