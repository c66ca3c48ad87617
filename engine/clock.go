package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/pipeline"
)

// clockLimit is how far the clock of a process may be from its database's: less than the
// times that timers and deadlines are about, and more than NTP leaves.
const clockLimit = 10 * time.Second

// clock is how far the clock of this process is from a database's. Leases, retention and what
// is due go by the database's alone. But what handlers call now is this process's: a timer that
// they set by it, and the deadline of a command, are off by as much.
type clock struct {
	now   func() time.Time
	ahead atomic.Int64 // nanoseconds; below 0: it is behind
}

// off is how far it is ahead, as far as that matters; 0: it doesn't.
func (c *clock) off() time.Duration {
	if d := time.Duration(c.ahead.Load()); d.Abs() > clockLimit {
		return d
	}
	return 0
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

// lookAtClock asks the database for the time, and the log tells when this process's begins or
// ceases to be another one.
func (d *database) lookAtClock(ctx context.Context) error {
	db, begin := d.provider.Reader(), d.clock.now()
	var there dbtime.Time
	if err := db.QueryRowContext(ctx, "SELECT "+dbtime.Now(db.Dialect())).Scan(&there); err != nil {
		return err
	}
	half := d.clock.now().Sub(begin) / 2 // It has read its clock on the way there and back.
	if half > clockLimit {
		return nil
	}
	ahead := begin.Add(half).Sub(there.Time)
	before := d.clock.off()
	d.clock.ahead.Store(int64(ahead))
	if d.observed {
		return nil
	}
	switch now := d.clock.off(); {
	case before == 0 && now != 0:
		d.log.Warn("the clock of this process isn't the database's", "provider", d.provider.Name(), "clock", apart(now), "harm", harm(now), "remedy", clockRemedy)
	case before != 0 && now == 0:
		d.log.Info("the clock of this process is the database's again", "provider", d.provider.Name())
	}
	return nil
}

// apart is how far the clock of this process is from the database's.
func apart(ahead time.Duration) string {
	if ahead < 0 {
		return fmt.Sprintf("%v behind the database's", brief(-ahead))
	}
	return fmt.Sprintf("%v ahead of the database's", brief(ahead))
}

// harm is what comes of it.
func harm(ahead time.Duration) string {
	if ahead < 0 {
		return "timers that its handlers set ring that much too early, and it handles commands for so long after their deadline"
	}
	return "timers that its handlers set ring that much too late, and it refuses commands so long before their deadline"
}

const clockRemedy = "Keep the clocks of this machine and of the database's server in step, by NTP or chrony. `waybill timers list` shows what is set; `waybill timers move` corrects it."
