package relay

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/liveness"
)

// What a relay asks of its database again and again.
var (
	claiming   = dberr.Task{What: "claim rows"}
	settling   = dberr.Task{What: "write back what became of rows"}
	keeping    = dberr.Task{What: "keep its partitions"}
	sharing    = dberr.Task{What: "share partitions"}
	counting   = dberr.Task{What: "find its partitions"}
	watching   = dberr.Task{What: "look for rows"}
	promising  = dberr.Task{What: "find out what is settled", Aside: true}
	cleaningUp = dberr.Task{What: "remove expired rows", Aside: true}
)

func by(t dberr.Task, who string) dberr.Task {
	t.Who = who
	return t
}

// lookAtProcesses is how often a relay looks whether a process of this host has ended:
// that asks no database.
const lookAtProcesses = time.Second

// view is what a poll says of a lane.
type view struct {
	others []MemberState // that live, without ours
	free   int
	now    time.Time // by the database's clock
	at     time.Time // by ours
}

// poll finds what nobody was poked for: what other processes have committed, what is due,
// and members that have ended. It is one query for all lanes, and while nothing is
// found, at growing intervals.
func (r *Relay) poll(hard context.Context) {
	cfg := r.cfg.Outbox
	for interval := time.Duration(0); r.await(interval); {
		if r.find(hard) {
			interval = cfg.PollInterval
		} else {
			interval = min(max(2*interval, cfg.PollInterval), cfg.MaxPollInterval)
		}
	}
}

// await waits for the next poll; it is false if the relay is stopping.
func (r *Relay) await(interval time.Duration) bool {
	for until := time.Now().Add(interval); ; {
		left := time.Until(until)
		timer := time.NewTimer(min(left, lookAtProcesses))
		select {
		case <-timer.C:
		case <-r.hinted:
			left = 0
		case <-r.stop:
		}
		timer.Stop()
		switch {
		case r.stopping():
			return false
		case left <= lookAtProcesses || r.sawDeath():
			return true
		}
	}
}

// sawDeath says that a member that was seen by the last poll has died on this host.
func (r *Relay) sawDeath() bool {
	for _, l := range r.each {
		if v := l.view.Load(); v != nil {
			for _, m := range v.others {
				if r.host.State(m.Name) == liveness.Dead {
					return true
				}
			}
		}
	}
	return false
}

// find polls, and tells the lanes.
func (r *Relay) find(hard context.Context) (found bool) {
	defer func() {
		if v := recover(); v != nil {
			for _, l := range r.each {
				l.crashed("polling", v)
			}
		}
	}()
	ids := make([]LaneID, len(r.each))
	for i, l := range r.each {
		ids[i] = l.id
	}
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	highest := r.highest.Load()
	polled, err := r.cfg.Store.Poll(ctx, ids)
	if err == nil && polled.Last < highest {
		r.log.Warn("the database gives numbers again that rows had before, as it was restored: the relay begins anew, and what was pending then is published again; state and inboxes may lack what came since",
			"provider", r.cfg.Provider, "rows_had", highest, "last_now", polled.Last)
		r.endLives()
		r.forgetNumbers()
		r.keeper.hurry()
	}
	for i, l := range r.each {
		l.database.Note(hard, watching, err)
		if err == nil && l.polled(ctx, polled, polled.Lanes[i]) {
			found = true
		}
	}
	return found
}

// endLives ends the memberships, and with them what the lanes think that they have read. The
// keeper makes others.
func (r *Relay) endLives() {
	for _, l := range r.each {
		if life := l.member.life(); life != nil {
			l.member.ended(life.id)
		}
	}
}

// forgetNumbers forgets how far the numbers of rows had come, as others may get the same. What
// is asked of the horizon at the moment goes into the one before.
func (r *Relay) forgetNumbers() {
	r.horizon.Store(new(horizon))
	r.highest.Store(0)
}

// polled takes in what a poll says of the lane.
func (l *lane) polled(ctx context.Context, p Polled, of PolledLane) (found bool) {
	v := &view{free: of.Free, now: p.Now, at: time.Now()}
	l.counts(ctx, of, v.at)
	l.r.seen(p.Last)
	life := l.member.life()
	var ended []MemberState
	for _, m := range of.Members {
		switch {
		case life != nil && m.ID == life.id:
		case m.Expired || l.r.host.State(m.Name) == liveness.Dead:
			ended = append(ended, m)
		default:
			v.others = append(v.others, m)
		}
	}
	if l.reap(ctx, ended) {
		l.r.hint()
	}
	l.view.Store(v)
	if of.NextDue != nil {
		l.dueIn(*of.NextDue)
		found = *of.NextDue <= 0
	}
	if last := l.last.Swap(p.Last); last != p.Last || l.unsure.Swap(false) {
		found = true
		l.wake.everywhere()
	} else if l.reached.Load() < p.Last { // somebody may be about to commit what he has drawn
		l.wake.everywhere()
	}
	l.wake.ring()
	return found
}

// reaped counts what was taken over.
func (l *lane) reaped(r Reaped) {
	if r.Rows > 0 {
		l.taken.Add(int64(r.Rows))
		l.log.Warn("rows were taken over that another member had claimed and not settled", "rows", r.Rows)
	}
}

// reap ends members whose lease has passed, and those whose processes have ended on this
// host: nobody waits for leases that nobody will renew, and the dead have no share.
func (l *lane) reap(ctx context.Context, ended []MemberState) (some bool) {
	var dead []string
	partitions := 0
	for _, m := range ended {
		proven := l.r.host.State(m.Name) == liveness.Dead
		reaped, err := l.r.cfg.Store.Reap(ctx, m.ID, proven)
		l.database.Note(ctx, by(sharing, "reap"), err)
		if err == nil && len(reaped.Undecided) > 0 {
			l.concludes(m, reaped.Undecided) //nolint:contextcheck // it goes on after the poll
		}
		if err != nil || !reaped.Done {
			continue
		}
		some = true
		if proven {
			dead, partitions = append(dead, m.Name), partitions+reaped.Parts
		}
		l.reaped(reaped)
	}
	if len(dead) > 0 {
		l.log.Info("members whose processes have ended on this host left their partitions at once", "members", dead, "partitions", partitions)
	}
	return some
}
