package doctor

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

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
			"if it was removed or renamed: waybill subscriptions retire "+s.Name+" --dry-run; else start what runs it")
	}
	return "every subscription that left something was seen within 30 days", nil
}
