package relay

import (
	"context"
	"time"
)

// said is what the member's row says.
type said struct{ sick, trial bool }

// share gives the lane its part of the partitions: those of all, divided by the members
// that reach the broker. Nobody takes from a member that lives: who has too much
// releases, who has too little takes what is free.
func (l *lane) share(hard context.Context, life *membership) error {
	v := l.view.Load()
	if v == nil {
		return nil
	}
	others, healthy, trials := 0, 0, 0
	for _, m := range v.others {
		if m.Name == l.r.name {
			continue // a poll during the join doesn't know yet that this is its own; nor has its life before a share
		}
		others++
		if m.Healthy {
			healthy++
		} else if m.Trial {
			trials++
		}
	}
	now := time.Now()
	want := l.health.share(now, l.partitions, others, healthy, trials)
	well, trouble := l.health.state()
	if says := (said{!well, !well && trouble == ""}); says != l.said {
		l.said = says
		l.r.keeper.hurry() // the others have to know
	}
	have := l.member.count()
	var err error
	if have > want || l.track.retired > 0 { // nobody else changes that
		err = l.release(hard, life, have-want)
	}
	if err == nil && have < want && v.free > 0 {
		err = l.take(hard, life, v, want-have)
	}
	l.database.Note(hard, sharing, err)
	if err == nil && l.watched.at != v.at {
		silent := l.watched.look(v.others, v.now, v.at)
		l.silent.Store(silent)
		l.watched.say(l.log, silent, l.watched.held(v.others), l.member.count(), l.partitions, v.at)
	}
	return err
}

// take takes what is free. If that isn't answered, the next renewal tells what is its own.
func (l *lane) take(hard context.Context, life *membership, v *view, n int) error {
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	ended := l.member.change(life)
	parts, err := l.r.cfg.Store.Take(ctx, life.id, l.id, n)
	ended(parts, nil)
	if err != nil {
		l.r.keeper.hurry()
		return err
	}
	left := *v
	if left.free -= len(parts); len(parts) == 0 {
		left.free = 0 // others were faster, or have them locked: the next poll tells
	}
	l.view.CompareAndSwap(v, &left)
	if len(parts) == 0 {
		return nil
	}
	l.log.Debug("partitions taken", "member", l.r.name, "partitions", len(parts))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, part := range parts {
		l.track.take(part)
	}
	return nil
}

// release chooses nothing more from what is above the share, and gives back what of it
// has nothing in hand. If that isn't answered, the statement may still run: the lane goes
// on as another member [RELEASEDOUBT].
func (l *lane) release(hard context.Context, life *membership, surplus int) error {
	gone := l.retire(surplus)
	if len(gone) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	ended := l.member.change(life)
	if err := l.r.cfg.Store.Release(ctx, life.id, l.id, gone); err != nil {
		ended(nil, nil)
		l.log.Warn("it is unknown whether partitions were released to other members; the lane rejoins", "member", l.r.name, "error", err)
		l.doubts()
		return err
	}
	ended(nil, gone)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, part := range gone {
		l.track.drop(part)
	}
	return nil
}

// retire ends choosing from as many partitions as there are too many, and returns those
// that can go now. What was retired before goes in any case.
func (l *lane) retire(surplus int) (gone []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	owned := l.track.owned()
	// In any order: a member on trial would get the same partition again, with nothing to
	// send; and what has nothing in hand, which could go at once, is no help to others.
	l.random.shuffle(owned)
	for _, part := range owned {
		if l.track.parts[part].retired {
			surplus--
		}
	}
	for _, part := range owned {
		if surplus > 0 && !l.track.parts[part].retired {
			l.track.retire(part)
			surplus--
		}
	}
	for _, part := range owned {
		if l.track.parts[part].retired && !l.track.busy(part) {
			gone = append(gone, part)
		}
	}
	return gone
}
