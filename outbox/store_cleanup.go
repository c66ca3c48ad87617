package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// actionPurge is the record's word for it.
const actionPurge = "purge"

// CleanUp removes finished rows like [Store.Purge], because an operator wants it:
// never one that is held, or that a target that is joining may need. It takes as
// long as that takes, and may be ended and run again at any time. Rows that
// somebody has locked are left.
func (s *Store) CleanUp(ctx context.Context, c CleanUp) (CleanedUp, error) {
	o := &cleaning{CleanUp: c}
	for _, status := range c.Statuses {
		if !status.Finished() {
			return o.done, fmt.Errorf("outbox: purge: %q rows stay: only those that are %s or %s are ever removed", status, Published, Abandoned)
		}
	}
	switch {
	case c.Actor == "" && !c.DryRun:
		return o.done, errors.New("outbox: purge: Actor is missing: say who asks, for the record")
	case !Storable(c.Actor):
		return o.done, fmt.Errorf("outbox: purge: Actor is %q: it must be UTF-8 without a zero byte", c.Actor)
	case c.OlderThan < 0:
		return o.done, fmt.Errorf("outbox: purge: OlderThan is %v: above 0, or 0 for what has expired", c.OlderThan)
	}
	for _, e := range []expirable{abandonedRows, publishedRows} {
		if len(c.Statuses) > 0 && !slices.Contains(c.Statuses, e.status) {
			continue
		}
		e = s.expired(e)
		if c.OlderThan > 0 {
			e.expires, e.expired = "NOT held", "finished_at <= "+dbtime.In(s.db.Dialect(), -c.OlderThan)
		}
		e.operator = o
		if _, err := s.walk(ctx, e, Config{}.WithDefaults().Retention.Batch, time.Now().Add(math.MaxInt64)); err != nil {
			return o.done, fmt.Errorf("outbox: purge: it ended early, after %d published and %d abandoned rows; run it again for the others: %w", o.done.Published, o.done.Abandoned, err)
		}
	}
	return o.done, nil
}

// cleaning is one call of CleanUp; nil is housekeeping.
type cleaning struct {
	CleanUp
	done CleanedUp
}

// counts says that rows stay.
func (o *cleaning) counts() bool { return o != nil && o.DryRun }

// note puts n more rows into the record of the action.
func (o *cleaning) note(ctx context.Context, tx bun.Tx, n int) (action int64, err error) {
	if o == nil || o.DryRun {
		return 0, nil
	}
	rows := int64(o.done.Published + o.done.Abandoned + n)
	if o.done.Action != 0 {
		_, err := tx.ExecContext(ctx, "UPDATE outbox_actions SET rows = ? WHERE id = ?", rows, o.done.Action)
		return o.done.Action, err
	}
	asked := struct {
		OlderThan string   `json:"older_than,omitempty"`
		Statuses  []Status `json:"statuses,omitempty"`
	}{Statuses: o.Statuses}
	if o.OlderThan > 0 {
		asked.OlderThan = o.OlderThan.String()
	}
	return record(ctx, tx, o.Actor, actionPurge, asked, rows)
}

// removed adds what a transaction did.
func (o *cleaning) removed(status Status, n int, action int64) {
	if o == nil || n == 0 {
		return
	}
	if status == Published {
		o.done.Published += n
	} else {
		o.done.Abandoned += n
	}
	o.done.Action = action
	if o.Progress != nil {
		o.Progress(o.done.Purged)
	}
}
