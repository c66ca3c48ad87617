package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// cleanUpAgain is when housekeeping that failed is tried again, unless its interval
// is shorter.
const cleanUpAgain = time.Minute

// housekeeping removes what has expired, once per interval over all processes:
// at the start, if an interval has passed since the last time, and from then on.
// A stop doesn't wait for it. What fails is tried again a minute later, by whoever
// comes first; the log has a line when that begins and one when it ends, and so has
// the state of every lane.
func (p *Processor) housekeeping(ctx context.Context) {
	r := p.cfg.Outbox.Retention
	if r.Every < 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.done.Go(func() {
		select {
		case <-p.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	failing := false
	for {
		mine, err := p.cleanUp(ctx, r)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			p.log.Warn("the outbox could not be cleaned up; it is tried again", "provider", p.cfg.Provider, "every", min(r.Every, cleanUpAgain), "error", err)
			failing = true
		case err == nil && mine && failing:
			p.log.Info("the outbox is cleaned up again", "provider", p.cfg.Provider)
			failing = false
		}
		for _, l := range p.lanes {
			l.database.Note(ctx, cleaningUp, err)
		}
		next := r.Every
		if err != nil {
			next = min(next, cleanUpAgain)
		}
		if !p.sleep(next) {
			return
		}
	}
}

// cleanUp is one interval's turn, if it is this process's.
func (p *Processor) cleanUp(ctx context.Context, r Retention) (mine bool, err error) {
	defer func() {
		if crash := recover(); crash != nil {
			err = fmt.Errorf("outbox: %v\n%s", crash, debug.Stack())
		}
	}()
	if mine, err = p.cfg.Store.TakeTurn(ctx, "purge", r.Every); err != nil || !mine {
		return mine, err
	}
	begin := time.Now()
	n, err := p.cfg.Store.Purge(ctx, r)
	if err != nil {
		err = errors.Join(err, p.cfg.Store.GiveBackTurn(ctx, "purge"))
	}
	if n != (Purged{}) {
		p.log.Info("expired rows were removed from the outbox", "provider", p.cfg.Provider,
			"published", n.Published, "abandoned", n.Abandoned, "took", time.Since(begin).Round(time.Millisecond))
	}
	return mine, err
}
