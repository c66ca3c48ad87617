// Package senders tells whose messages the subscriptions of a database have got lately, and
// whether two services share them out that know nothing of each other.
package senders

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Heard is when subscriptions have last heard of outboxes, to a minute: by subscription and
// the outbox's name.
type Heard map[string]map[string]time.Time

// Of returns whom the subscriptions of a database have heard of within a while. Its table must
// be there.
func Of(ctx context.Context, db bun.IDB, within time.Duration) (Heard, error) {
	all := Heard{}
	err := dbrows.Each(ctx, db, "SELECT subscription, source, max(seen_at) FROM inbox_marks WHERE source <> '' AND seen_at > "+dbtime.In(db.Dialect(), -within)+" GROUP BY subscription, source",
		func(scan func(...any) error) error {
			var name, source string
			var seen dbtime.Time
			err := scan(&name, &source, &seen)
			if all[name] == nil {
				all[name] = map[string]time.Time{}
			}
			if outbox, _, _ := strings.Cut(source, ":"); all[name][outbox].Before(seen.Time) {
				all[name][outbox] = seen.Time
			}
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("look whose messages the inboxes have: %w", err)
	}
	return all, nil
}

// Mixed are the subscriptions that hear of one of these outboxes, and of others: when of the
// latter last. What one service hears of itself, another one publishes, too, and if both have the
// subscription, each gets a part. A stream of another context is published by others alone.
func (h Heard) Mixed(own []string) map[string]time.Time {
	mixed := map[string]time.Time{}
	for name, outboxes := range h {
		ours := false
		var last time.Time
		for outbox, seen := range outboxes {
			if slices.Contains(own, outbox) {
				ours = true
			} else if last.Before(seen) {
				last = seen
			}
		}
		if ours && !last.IsZero() {
			mixed[name] = last
		}
	}
	return mixed
}

// Advice is what helps.
const Advice = "if that is another service, another stage or a copy, give each a topic_prefix of its own; if it is of this context, name its database under providers"
