package relaytest

import (
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

// unflushed is for how long a crash of the server may undo what isn't durable: what is older
// was written meanwhile, or a later change that is durable had it written.
const unflushed = 600 * time.Millisecond

// flushes are the steps that are durable whatever they are told.
var flushes = []Step{Join, Renew, Take, Release, Reap, Finish, Leave}

// saved is what a database was, before a change that isn't durable.
type saved struct {
	at        time.Time
	queue     map[int64]*queued
	bodies    map[int64]*body
	tokens    map[token][]relay.RowRef
	abandoned map[int64]relay.Abandonment
	published map[int64]bool
	log       int
}

// Crashes says that the server will crash, see [Store.Crash].
func (s *Store) Crashes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashes = true
}

// Crash is one of the database's server, which is there again at once: what wasn't flushed is
// undone, and the memberships that there are do nothing more until their leases have ended.
func (s *Store) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		m.crashed = true
	}
	s.unsaved = slices.DeleteFunc(s.unsaved, func(was saved) bool { return time.Since(was.at) > unflushed })
	if len(s.unsaved) > 0 {
		was := s.unsaved[0]
		s.queue, s.bodies, s.tokens, s.abandoned, s.published, s.log = was.queue, was.bodies, was.tokens, was.abandoned, was.published, s.log[:was.log]
	}
	s.unsaved = nil
}

// Backup notes all that there is. What it returns puts that back, as a dump does that is
// restored into the same database: numbers are given again.
func (s *Store) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.copied()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seq, s.lanes, s.owners, s.members, s.bodies = was.seq, was.lanes, was.owners, was.members, was.bodies // members' numbers are random
		s.queue, s.tokens, s.abandoned, s.published, s.log = was.queue, was.tokens, was.abandoned, was.published, was.log
	}
}

func (s *Store) copied() *database {
	was := &database{
		seq: s.seq, lanes: slices.Clone(s.lanes), owners: map[relay.LaneID][]relay.MemberID{}, members: map[relay.MemberID]*member{}, bodies: maps.Clone(s.bodies),
		queue: map[int64]*queued{}, tokens: maps.Clone(s.tokens), abandoned: maps.Clone(s.abandoned), published: maps.Clone(s.published), log: slices.Clone(s.log),
	}
	for lane, owners := range s.owners {
		was.owners[lane] = slices.Clone(owners)
	}
	for id, m := range s.members {
		one := *m
		was.members[id] = &one
	}
	for seq, q := range s.queue {
		row := *q
		was.queue[seq] = &row
	}
	return was
}

// GiveAgain has the sequence be back at a number.
func (s *Store) GiveAgain(seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq = seq
}

// keep notes what there is before a change, or that all there is will be kept. The lock is held.
func (s *Store) keep(durable bool) {
	if !s.crashes || durable {
		s.unsaved = nil
		return
	}
	was := saved{
		at: time.Now(), queue: make(map[int64]*queued, len(s.queue)), bodies: maps.Clone(s.bodies), tokens: maps.Clone(s.tokens),
		abandoned: maps.Clone(s.abandoned), published: maps.Clone(s.published), log: len(s.log),
	}
	for seq, q := range s.queue {
		row := *q
		was.queue[seq] = &row
	}
	s.unsaved = append(s.unsaved, was)
}
