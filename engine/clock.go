package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/dbtime"
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
