package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/projection"
)

// projections looks for those that are stuck or wait for somebody, and for those in use
// that nobody feeds.
func (e *exam) projections(ctx context.Context, _ bun.IDB) (string, error) {
	all, err := projection.List(ctx, e.provider)
	if err != nil {
		return "", err
	}
	for _, p := range all {
		where := fmt.Sprintf("projection %s, build %d", p.Name, p.Build)
		live := p.Status == projection.Live
		switch {
		case p.Failure != nil && (live || p.Fed):
			e.add(Critical, where, fmt.Sprintf("it stopped at position %d: %s can't be handled", p.Failure.Position, p.Failure.Event),
				"waybill projections list "+p.Name+" says why; fix the handler, deploy a build that reads the event if a newer one has written it, or continue without the event: waybill projections skip")
		case p.Position > p.Head:
			e.add(Critical, where, fmt.Sprintf("it stands at position %d, and the history ends at %d: that was restored or emptied without it. Events that come up to there have no effect in its tables", p.Position, p.Head),
				"see the check sequences, then waybill projections rebuild "+p.Name)
		case p.Held != nil && time.Since(p.Held.Since) > e.limits.held:
			e.add(Warning, where, "it waits "+p.Held.String()+", a transaction that has written events: what was committed behind it can't be read before it ends",
				"end it: "+p.Held.By[0].Remedy()+"; and bound such sessions with idle_in_transaction_session_timeout")
		case live && !p.Fed:
			e.add(Warning, where, "its view is in use, and no process feeds it",
				e.unlessMoved(fmt.Sprintf("start an engine whose build has version %d of it; if no build has it any more, %s", p.Version, projection.Instead(all, p))))
		}
	}
	return "every projection in use is fed, and none has stopped or waits for a transaction", nil
}
