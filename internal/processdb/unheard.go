package processdb

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// heardIn is how long ago a run of a subscription gave its last sign if it still hears: they
// give one every 3 s.
const heardIn = 15 * time.Second

// UnheardRemedy is what helps where processes of a name run for which nobody hears.
func UnheardRemedy(name string) string {
	return "If the process was renamed, stop the build that has the new name, which begins each anew by the oldest messages that the broker has and sends its commands again, and give it its old name back; " +
		"if it was removed, deploy a build that has it until they have ended, or end them: `waybill processes end --process " + name + " --dry-run` says what that comes to"
}

// Unheard are the kinds of processes of which some run, and none of whose subscriptions,
// one for each stream, runs in any program. It looks at one row of each kind.
func (s *Store) Unheard(ctx context.Context) ([]string, error) {
	names, err := s.Names(ctx)
	if err != nil {
		return nil, err
	}
	var unheard []string
	for _, name := range names {
		var nobody bool
		// Its subscriptions are named after it and a topic, behind a dot, which '/' follows.
		err := s.db.NewRaw("SELECT EXISTS (SELECT 1 FROM processes WHERE process = ? AND status = 'running')"+
			" AND NOT EXISTS (SELECT 1 FROM subscription_runs WHERE subscription > ? AND subscription < ? AND seen_at > ?)",
			name, name+".", name+"/", bun.Safe(dbtime.In(s.db.Dialect(), -heardIn))).Scan(ctx, &nobody)
		if err != nil {
			return nil, fmt.Errorf("processes: look whether somebody hears for those of %s: %w", name, err)
		}
		if nobody {
			unheard = append(unheard, name)
		}
	}
	return unheard, nil
}
