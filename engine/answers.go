package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/pipeline"
)

// component is how it is for this process: what is asked of it, and whether others of the process
// have what everybody needs to get through to it.
func (d *database) component(ctx context.Context) component {
	state := lookAtDatabase(ctx, d.alive)
	if p, ok := d.provider.(pooled); ok && state.OK == nil && p.UsedUp() {
		// It may be why, or come of a database that hangs: the question tells when it is given up.
		text := *state.Error + ", and " + (&usedUpError{p.MaxConns()}).Error()
		state.Error = &text
	} else if ok && state.OK != nil && *state.OK {
		if wait := p.UnitsWait(); wait >= unitsWait {
			state = newComponent(false, fmt.Sprintf("units of work and handlers have all that they may have of the pool's %d, and for %v none that waits for one has got it", p.MaxConns(), wait.Round(time.Second)))
			state.usedUp = true
		}
	}
	if w, ok := d.provider.(oneWriter); ok {
		if by, since := w.WriterHeld(); since >= unitsWait {
			state.held = fmt.Sprintf("%s has had it for %v", by, brief(since))
		}
	}
	return state
}

// lookAtDatabase is look for one that may only be slow: everything goes on there, so it is
// not as one that is down.
func lookAtDatabase(ctx context.Context, check *cached[error]) component {
	c := look(ctx, check)
	err, took, slow := check.slow()
	_, usedUp := errors.AsType[*usedUpError](err)
	switch {
	case slow && err == nil && (c.OK == nil || *c.OK):
		c = newComponent(true, "")
		c.slow = took
	case usedUp:
		c = newComponent(false, err.Error()) // also while it is asked again, which takes as long
		c.usedUp = true
	}
	return c
}

// ping says whether the database answers, as it does when it is asked for the time, and has
// what no unit of work commits without.
func (d *database) ping(ctx context.Context) error {
	err := d.question(ctx)
	if err != nil && ctx.Err() != nil && d.usedUp(ctx) {
		return &usedUpError{d.provider.(pooled).MaxConns()}
	}
	return err
}

// pooled is a provider with a bounded number of connections.
type pooled interface {
	MaxConns() int
	UsedUp() bool
	UnitsWait() time.Duration
}

// oneWriter is a provider in which one transaction writes at a time.
type oneWriter interface {
	WriterHeld() (by string, since time.Duration)
}

// unitsWait is for how long units of work may get no connection before people should see it.
const unitsWait = 5 * time.Second

// usedUpError is a database that answers, but not to those who need a connection of the pool.
type usedUpError struct{ conns int }

func (e *usedUpError) Error() string {
	return fmt.Sprintf("all %d connections of the pool are in use by this process, and nothing is published", e.conns)
}

// usedUp is whether nobody else gets a connection although the database answers on the one beside
// the pool: where it hangs, those who wait for it have all of them, too.
func (d *database) usedUp(ctx context.Context) bool {
	p, ok := d.provider.(pooled)
	beside, has := d.provider.DB().Driver().(pipeline.Keeper)
	if !ok || !has || !p.UsedUp() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout/2)
	defer cancel()
	return beside.Keep(ctx, pipeline.Statement{Query: "SELECT 1"}) == nil
}

// question is what a database that is well answers.
func (d *database) question(ctx context.Context) error {
	if !d.ready.Load() {
		if reason := d.reason.Load(); reason != nil {
			return *reason
		}
		return errors.New("its tables were not checked yet")
	}
	if err := d.lookAtClock(ctx); err != nil || !d.hasOutbox() {
		return err
	}
	_, err := outboxdb.Partitions(ctx, d.provider.Reader())
	return err
}
