package doctor

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// timers looks for those that nobody sends, and those that were sent and will not be
// handled any more.
func (e *exam) timers(ctx context.Context, db bun.IDB) (string, error) {
	err := dbrows.Each(ctx, db, "SELECT coalesce(message ->> 'target', ''), "+dbtime.Seconds(db.Dialect(), "available_at", e.now())+
		" FROM timers WHERE status = 'waiting' AND available_at < (SELECT "+e.ago(e.limits.waiting)+") ORDER BY available_at, id LIMIT 1",
		func(scan func(...any) error) error {
			var target string
			var late float64
			err := scan(&target, &late)
			e.add(Critical, "table timers", fmt.Sprintf("a waiting timer was due %v ago: no engine sends due timers to broker %q", seconds(late), target),
				e.unlessMoved("start an engine of this database; if one runs, its log and /api/health say what keeps it, and waybill outbox stats whether what it sends leaves"))
			return err
		})
	if err != nil {
		return "", err
	}
	if err := e.brokenTimers(ctx, db); err != nil {
		return "", err
	}
	return "timers are sent when they are due, and none of them is lost", e.strayTimers(ctx, db)
}

func were(n int64) string {
	if n == 1 {
		return "1 timer was"
	}
	return fmt.Sprintf("%d timers were", n)
}

// brokenTimers looks for those that are set aside.
func (e *exam) brokenTimers(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, "SELECT count(*), coalesce(min(CAST(id AS text)), '') FROM timers WHERE status = 'broken'", func(scan func(...any) error) error {
		var n int64
		var id string
		err := scan(&n, &id)
		if n > 0 {
			e.add(Warning, "table timers", fmt.Sprintf("%s set aside, such as %s, as their messages can't be sent", were(n), id),
				"waybill timers show "+id+" says why; waybill timers fire --status broken tries them again, waybill timers stop --status broken discards them")
		}
		return err
	})
}

// strayTimers looks among the oldest that were sent.
func (e *exam) strayTimers(ctx context.Context, db bun.IDB) error {
	letters := ""
	if e.current["subscription"] {
		letters = " AND NOT EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.message_id = CAST(t.id AS text) AND d.status IN ('parked', 'held', 'waiting', 'replay'))"
	}
	return dbrows.Each(ctx, db, "SELECT count(*), min(CAST(id AS text)) FROM (SELECT id FROM timers"+
		" WHERE status = 'sent' AND sent_at < (SELECT "+e.ago(e.limits.sent)+") ORDER BY sent_at LIMIT 1000) AS t"+
		" WHERE NOT EXISTS (SELECT 1 FROM outbox_messages AS m JOIN outbox_queue AS q ON q.lane = m.lane AND q.part = m.part AND q.seq = m.seq WHERE m.message_id = t.id)"+letters,
		func(scan func(...any) error) error {
			var n int64
			var id *string
			err := scan(&n, &id)
			if n > 0 && id != nil {
				e.add(Warning, "table timers", fmt.Sprintf("%s sent more than %v ago, such as %s, and neither in the outbox nor a dead letter, and not handled", were(n), e.limits.sent, *id),
					"see that the subscription of its context's commands, or of the process whose it is, runs and is not behind, in a build that has it; if its message was given up (waybill outbox show, waybill dead-letters list --status discarded), waybill timers stop --id "+*id+" forgets it")
			}
			return err
		})
}
