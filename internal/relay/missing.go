package relay

import (
	"context"
	"fmt"
	"time"
)

// shortFor is how long partitions have to be missing before that is said: a poll reads in two
// steps who has which, and between them one may change hands.
const shortFor = 2 * time.Second

// counts looks whether all partitions are there: what somebody has removed from outbox_partitions
// is free for nobody. It is made again when nobody can think any more that it is his: after as
// long as a lease, in which each member has been told by a renewal, or has lost its own. Of the poll.
func (l *lane) counts(ctx context.Context, of PolledLane, now time.Time) {
	have := of.Free
	for _, m := range of.Members {
		have += m.Parts
	}
	if have >= l.partitions {
		l.short = time.Time{}
		l.database.Note(ctx, counting, nil)
		return
	}
	if l.short.IsZero() {
		l.short = now
	}
	lease := l.r.cfg.Outbox.Lease
	switch passed := now.Sub(l.short); {
	case passed < shortFor:
		return
	case passed >= lease:
		l.short = now.Add(-shortFor)
		if _, _, err := l.r.cfg.Store.Lanes(ctx, []string{l.Target}); err != nil {
			l.database.Note(ctx, counting, err)
			return
		}
		l.r.hint()
	}
	l.database.Note(ctx, counting, fmt.Errorf("outbox: %d of the %d partitions of target %q have no row in outbox_partitions, or an owner that has none in outbox_members, and nobody publishes what is in them: "+
		"see who removes rows there; rows that are missing are made again after %v, and for owners `waybill doctor` has the statement that helps", l.partitions-have, l.partitions, l.Target, lease))
}
