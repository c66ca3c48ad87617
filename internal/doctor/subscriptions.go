package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
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
	ours, others := map[string]bool{}, map[string]time.Time{}
	err := dbrows.Each(ctx, db, "SELECT subscription, source, max(seen_at) FROM inbox_marks WHERE source <> '' AND seen_at > "+e.ago(e.limits.mixed)+" GROUP BY subscription, source ORDER BY subscription, source",
		func(scan func(...any) error) error {
			var name, source string
			var seen dbtime.Time
			err := scan(&name, &source, &seen)
			if outbox, _, _ := strings.Cut(source, ":"); slices.Contains(e.outboxes, outbox) {
				ours[name] = true
			} else if others[name].Before(seen.Time) {
				others[name] = seen.Time
			}
			return err
		})
	if err != nil || len(e.outboxes) == 0 {
		return "what other databases publish was not looked at, as not all of the configuration could be asked", err
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if ours[name] {
			e.add(Warning, "subscription "+name, fmt.Sprintf("its topic has events of our own and of another database's outbox, the last at %s: what is of the one is handled in the other, if both have this subscription", others[name].UTC().Format(time.RFC3339)),
				"if that is another service, another stage or a copy, give each a topic_prefix of its own; if it is of this context, name its database under providers")
		}
	}
	return "no subscription hears of our events and of others beside them", nil
}
