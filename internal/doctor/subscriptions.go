package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/senders"
	"github.com/waybill-go/waybill/subscription"
)

// subscriptions looks for those that run no more: what they left stays, and their
// inboxes grow old with nobody to remove anything from them.
func (e *exam) subscriptions(ctx context.Context, db bun.IDB) (string, error) {
	all, err := subscription.List(ctx, db)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.Running || s.LastSeen == nil || e.limits.now().Sub(*s.LastSeen) < e.limits.unseen || s.Inbox+s.DeadLetters == 0 {
			continue
		}
		inbox, open := count(s.Inbox, "row"), ""
		if s.InboxMore {
			inbox = "over " + inbox
		}
		if s.Open > 0 {
			open = fmt.Sprintf(" (%d open)", s.Open)
		}
		e.add(Warning, "subscription "+s.Name, fmt.Sprintf("it was not seen for %d days, and left %s in its inbox and %s%s", int(e.limits.now().Sub(*s.LastSeen).Hours()/24), inbox, count(s.DeadLetters, "dead letter"), open),
			e.unlessMoved("if it was removed or renamed: waybill subscriptions retire "+s.Name+" --dry-run; else start what runs it"))
	}
	return "every subscription that left something was seen within 30 days", nil
}

// sources looks for topics that two services share which know nothing of each other: what a
// subscription hears of one of our outboxes is then also published by another one.
func (e *exam) sources(ctx context.Context, db bun.IDB) (string, error) {
	heard, err := senders.Of(ctx, db, e.limits.mixed)
	if err != nil || len(e.outboxes) == 0 {
		return "what other databases publish was not looked at, as not all of the configuration could be asked", err
	}
	mixed := heard.Mixed(e.outboxes)
	for _, name := range slices.Sorted(maps.Keys(mixed)) {
		e.add(Warning, "subscription "+name, fmt.Sprintf("its topic has events of our own and of another database's outbox, the last at %s: what is of the one is handled in the other, if both have this subscription", mixed[name].UTC().Format(time.RFC3339)),
			senders.Advice)
	}
	return "no subscription hears of our events and of others beside them", nil
}
