package relay

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/outbox"
)

// waitingEvery is how often a lane says at most that it waits for another process.
const waitingEvery = 10 * time.Second

// watched is what a lane remembers of the members of other processes. Whether one
// renews is seen only by who looks again.
type watched struct {
	host  liveness.Host
	lease time.Duration
	at    time.Time // of the last look
	began bool
	said  time.Time
	seen  map[MemberID]sighting
}

// sighting is a member's lease, as it was when it was last seen to be renewed.
type sighting struct {
	until time.Time
	lease time.Duration // how long it is, at least
	at    time.Time
}

// look takes in who the others are, by the database's clock and ours, after the lane has
// taken what is free, and returns who is silent: for half a lease, of which a third is
// the time between renewals.
func (w *watched) look(others []MemberState, now, at time.Time) *outbox.Silence {
	seen := map[MemberID]sighting{}
	var silent outbox.Silence
	for _, m := range others {
		if m.Parts == 0 {
			continue
		}
		s, ok := w.seen[m.ID]
		if !ok || !s.until.Equal(m.Until) {
			s = sighting{until: m.Until, lease: max(w.lease, m.Until.Sub(now)), at: at}
		}
		seen[m.ID] = s
		if quiet := at.Sub(s.at); quiet >= s.lease/2 {
			w.add(&silent, m, quiet)
		}
	}
	w.seen, w.at = seen, at
	if silent.Partitions == 0 {
		return nil
	}
	return &silent
}

// held is what others hold, whoever they are.
func (w *watched) held(others []MemberState) (s outbox.Silence) {
	for _, m := range others {
		if m.Parts > 0 {
			w.add(&s, m, 0)
		}
	}
	return s
}

func (w *watched) add(s *outbox.Silence, m MemberState, quiet time.Duration) {
	s.Partitions += m.Parts
	p := liveness.Process(m.Name)
	if w.host.State(m.Name) == liveness.Alive {
		p += " (alive on this host)"
	}
	if !slices.Contains(s.Processes, p) {
		s.Processes = append(s.Processes, p)
	}
	if m.Until.After(s.Until) {
		s.Until = m.Until
	}
	s.For = max(s.For, quiet)
}

// say logs whose partitions rows wait for: at the start, if the lane got none, and
// now and then while somebody who holds some is silent.
func (w *watched) say(log *slog.Logger, silent *outbox.Silence, others outbox.Silence, have, partitions int, at time.Time) {
	first := !w.began
	w.began = true
	switch {
	case silent != nil && at.Sub(w.said) >= waitingEvery:
		w.said = at
		log.Info("rows wait for partitions of a process that doesn't renew its leases; they continue when these expire, or when it renews them",
			"held", fmt.Sprintf("%d of %d by %v", silent.Partitions, partitions, silent))
	case first && have == 0 && others.Partitions > 0:
		w.said = at
		log.Info("all partitions are held by other processes; rows continue when these share them, or when their leases expire",
			"held", fmt.Sprintf("%d of %d by %s until %s", others.Partitions, partitions, someOf(others.Processes), others.Until.UTC().Format("15:04:05Z")))
	}
}

// someOf are some names for people.
func someOf(all []string) string {
	const most = 3
	if more := len(all) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), more)
	}
	return strings.Join(all, ", ")
}
