package subscription_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

// A77, S1: a full disk of the database, a standby that takes no writes, and a password that was
// changed, by which some connections go on and no new one is let in, are not the messages'
// fault: they wait, none pays an attempt or is parked, and it shows what they wait
// for, although the database answers whoever reads.
func TestRunner_A77_ADatabaseThatTakesNoWritesIsNoMessagesFault(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"disk full": "53100", "read-only": "25006", "not let in": "28P01"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openPostgres(t))
			w.exec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it takes no writes' USING ERRCODE = '" + code + "'; END $$")
			w.exec("CREATE TRIGGER refuse BEFORE INSERT ON effects FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
			s := w.stream()
			s.MaxAttempts = 1
			var calls atomic.Int64
			s.Handlers = []subscription.Handler{subscription.On(func(ctx context.Context, e OrderPlaced) error {
				calls.Add(1)
				return effect(ctx, e)
			})}
			r, _ := w.start(s, w.broker)
			w.publish(placed("o-1", "first"), placed("o-1", "second"), placed("o-2", "third"))
			w.until(func() bool {
				require.Zero(t, r.Status().Parked)
				return calls.Load() >= 4 && r.Status().Database != nil
			}, "they are tried again, and it shows")
			trouble := r.Status().Database
			require.Equal(t, code, trouble.Code)
			require.Equal(t, "store what handlers do", trouble.What)
			require.Contains(t, trouble.Error, "it takes no writes")
			require.Zero(t, r.Status().Parked)

			w.exec("DROP TRIGGER refuse ON effects")
			w.until(w.acknowledged("shipping"), "all are handled")
			require.Equal(t, 3, w.allEffects())
			require.Zero(t, r.Status().Parked)
			w.until(func() bool { return r.Status().Database == nil }, "it is over")
			require.Len(t, w.logs.lines("the database does not answer as it should"), 1)
			require.Len(t, w.logs.lines("the database answers again"), 1)
		})
	}
}
