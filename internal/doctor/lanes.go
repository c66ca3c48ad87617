package doctor

import (
	"cmp"
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/outboxdb"
)

// Each step is one of the index, however many rows wait.
const namelessLanes = `WITH RECURSIVE n (lane) AS (
	SELECT min(lane) FROM outbox_queue
	UNION ALL
	SELECT (SELECT min(q.lane) FROM outbox_queue AS q WHERE q.lane > n.lane) FROM n WHERE n.lane IS NOT NULL
)
SELECT n.lane, (SELECT count(*) FROM outbox_queue AS q WHERE q.lane = n.lane), (SELECT min(q.seq) FROM outbox_queue AS q WHERE q.lane = n.lane)
FROM n WHERE n.lane IS NOT NULL AND NOT EXISTS (SELECT 1 FROM outbox_lanes AS l WHERE l.id = n.lane) ORDER BY n.lane`

// nameless looks for rows of numbers that outbox_lanes has no name for, as after a TRUNCATE or a
// restore without that table. Their broker has another number by now, so no engine sees them.
func (e *exam) nameless(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, namelessLanes, func(scan func(...any) error) error {
		var lane, rows, first int64
		if err := scan(&lane, &rows, &first); err != nil {
			return err
		}
		e.add(Critical, fmt.Sprintf("lane %d", lane), fmt.Sprintf("%s wait, the first with seq %d, for a target broker whose name isn't in outbox_lanes any more: no engine publishes them", count(rows, "row"), first),
			fmt.Sprintf("find out which broker that was: SELECT DISTINCT stream_category, topic, message_type FROM outbox_messages WHERE lane = %[1]d, where a context's own broker has all of its events, and commands and timers besides. "+
				"Stop the engines of this database; SELECT id FROM outbox_lanes WHERE target = 'BROKER', or INSERT INTO outbox_lanes (target) VALUES ('BROKER') if it isn't there; with that id as N: "+
				"BEGIN; UPDATE outbox_messages SET lane = N WHERE lane = %[1]d; UPDATE outbox_queue SET lane = N WHERE lane = %[1]d; "+
				"UPDATE outbox_abandoned SET lane = N WHERE lane = %[1]d; UPDATE outbox_log SET lane = N WHERE lane = %[1]d; COMMIT; and start them", lane))
		return nil
	})
}

// short looks for partitions that have no row: no process can take them.
func (e *exam) short(ctx context.Context, db bun.IDB, target string, lane int64) error {
	want, err := outboxdb.Partitions(ctx, db)
	if err != nil {
		return nil //nolint:nilerr // the schema's check says so
	}
	var have int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM outbox_partitions WHERE lane = ?", lane).Scan(&have)
	if err == nil && have < want {
		e.add(Critical, "target broker "+target, fmt.Sprintf("%d of %d partitions have no row in outbox_partitions: what is in them is not published", want-have, want),
			"nothing, if an engine of this build runs: it makes them again when a lease has passed (outbox.lease); otherwise start one. See who removes rows there")
	}
	return err
}

// sick tells of a target whose processes all don't reach it, and what one of them says.
func (e *exam) sick(ctx context.Context, db bun.IDB, target string, lane int64) error {
	var all, sick int64
	var trouble string
	err := db.QueryRowContext(ctx, "SELECT count(*), count(CASE WHEN NOT healthy THEN 1 END), COALESCE(max(trouble), '') FROM outbox_members WHERE lane = ? AND until > "+e.now(), lane).Scan(&all, &sick, &trouble)
	if err != nil || all == 0 || sick < all {
		return err
	}
	return e.stuck(ctx, db, target, lane, fmt.Sprintf("none of the processes that have this broker (%d) can publish to it: %s", all, cmp.Or(trouble, "why is in their logs")),
		"see that the broker runs and lets them in (`waybill doctor --kafka` or --nats looks from here); they continue by themselves once it answers")
}
