package outbox

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/liveness"
)

// waitingEvery is how often a lane says at most that it waits for another process.
const waitingEvery = 10 * time.Second

// watched is what a lane remembers of the workers of other processes. Whether one
// renews is seen only by who looks again.
type watched struct {
	host  liveness.Host
	mine  []string // workers
	lease time.Duration
	began bool
	said  time.Time
	seen  map[string]sighting
}

// sighting is a worker's lease, as it was when it was last seen to be renewed.
type sighting struct {
	until time.Time
	lease time.Duration // how long it is, at least
	at    time.Time
}

// look takes in what the database says at a time, after the lane has taken what is
// free, and returns who is silent: for half a lease, of which a third is the time
// between renewals.
func (w *watched) look(m Membership, at time.Time) *Silence {
	seen := map[string]sighting{}
	var silent Silence
	for _, member := range m.Members {
		if member.Until == nil || slices.Contains(w.mine, member.Worker) {
			continue
		}
		s, ok := w.seen[member.Worker]
		if !ok || !s.until.Equal(*member.Until) {
			s = sighting{until: *member.Until, lease: max(w.lease, member.Until.Sub(m.Now)), at: at}
		}
		seen[member.Worker] = s
		if quiet := at.Sub(s.at); quiet >= s.lease/2 {
			w.add(&silent, member, quiet)
		}
	}
	w.seen = seen
	if silent.Partitions == 0 {
		return nil
	}
	return &silent
}

// held is what others hold, whoever they are.
func (w *watched) held(m Membership) (s Silence) {
	for _, member := range m.Members {
		if member.Until != nil && !slices.Contains(w.mine, member.Worker) {
			w.add(&s, member, 0)
		}
	}
	return s
}

func (w *watched) add(s *Silence, m Member, quiet time.Duration) {
	s.Partitions += m.Partitions
	p := liveness.Process(m.Worker)
	if w.host.State(m.Worker) == liveness.Alive {
		p += " (alive on this host)"
	}
	if !slices.Contains(s.Processes, p) {
		s.Processes = append(s.Processes, p)
	}
	if m.Until.After(s.Until) {
		s.Until = *m.Until
	}
	s.For = max(s.For, quiet)
}

// say logs whose partitions rows wait for: at the start, if the lane got none, and
// now and then while somebody who holds some is silent.
func (w *watched) say(log *slog.Logger, silent *Silence, others Silence, have, partitions int, at time.Time) {
	first := !w.began
	w.began = true
	switch {
	case silent != nil && at.Sub(w.said) >= waitingEvery:
		w.said = at
		log.Info("rows wait for partitions of a process that doesn't renew its leases; they go on when these end, or when it does",
			"held", fmt.Sprintf("%d of %d by %v", silent.Partitions, partitions, silent))
	case first && have == 0 && others.Partitions > 0:
		w.said = at
		log.Info("all partitions are held by other processes; rows go on when these share them, or when their leases end",
			"held", fmt.Sprintf("%d of %d by %s until %s", others.Partitions, partitions, names(others.Processes), clock(others.Until)))
	}
}
