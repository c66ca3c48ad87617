package subscription_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// OrderPlacedAt is OrderPlaced since version 2, and a Crate is kept in its second form.
type (
	OrderPlacedAt struct {
		OrderID string `json:"order_id"`
		Note    string `json:"note"`
		Shop    string `json:"shop"`
	}
	Crate   struct{ domain.Root }
	crateV1 struct{}
)

var shippingV2 = domain.MustNew("shipping",
	domain.Aggregate[*Crate]("crate", domain.StateVersion(2), domain.UpcastState(1, func(crateV1) *Crate { return &Crate{} })),
	domain.Foreign[OrderCancelled]("Ordering.OrderCancelled.v2"),
	domain.Foreign[OrderPlacedAt]("Ordering.OrderPlaced.v2", domain.Upcast(1, func(e OrderPlaced) OrderPlacedAt { return OrderPlacedAt{e.OrderID, e.Note, "unknown"} })),
)

const placedV2 = "Ordering.OrderPlaced.v2"

// newer is a stream of the build that reads version 2.
func (w *world) newer(handle func(context.Context, OrderPlacedAt) error) subscription.Stream {
	w.t.Helper()
	s := w.streamOf(subscription.On(handle))
	var err error
	s.Units, err = uow.New(uow.Config{Domain: shippingV2, Providers: []uow.Provider{w.provider}})
	require.NoError(w.t, err)
	s.OnParked = subscription.Hold
	return s
}

func shopped(ctx context.Context, e OrderPlacedAt) error {
	return effect(ctx, OrderPlaced{e.OrderID, e.Shop + ": " + e.Note})
}

// N3, F-39: what is too new for a build holds its key, and nothing else, until a build comes
// that reads it. That one handles it by itself, in its place; the old one, which runs on,
// has it once and never again, also if an operator asks for it.
func TestNewerVersion_N3_IsHandledByTheFirstBuildThatReadsIt(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.stream()
		s.OnParked = subscription.Hold
		w.start(s, w.broker)
		w.publish(
			message("new", placedV2, "o", `{"order_id":"o","note":"1","shop":"here"}`), placed("o", "2"),
			message("new again", placedV2, "o", `{"order_id":"o","note":"3","shop":"there"}`), placed("other", "1"),
			message("much newer", "Ordering.OrderPlaced.v3", "fourth", `{}`),
		)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		require.Equal(t, []string{"1"}, w.effects("other"))
		status := func(id string) (status string) {
			require.NoError(t, w.provider.Reader().NewRaw("SELECT status FROM dead_letters WHERE message_id = ?", id).Scan(context.Background(), &status))
			return status
		}
		require.Equal(t, "parked", status("new"))

		// The operator's wish waits for the new build: the old one takes what comes after.
		letters := subscription.NewDeadLetters(w.provider)
		marked, err := letters.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", MessageID: "new"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, []string{placedV2}, marked.Needs, "the operator is told")
		w.until(func() bool {
			newer, err := subscription.CountNewer(t.Context(), w.provider.Reader())
			require.NoError(t, err)
			return newer["shipping"] == subscription.NewerLetters{Count: 4, Needs: placedV2, More: 1}
		}, "they count apart, with what is held behind them")
		w.publish(message("bad", placedV1, "third", `{"order_id":1}`))
		w.until(w.acknowledged("shipping"), "it is parked")
		_, err = letters.Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", MessageID: "bad"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE message_id = 'bad' AND status = 'parked' AND replays = 1") == 1
		}, "what is undecodable is parked again")
		require.Equal(t, "replay", status("new"))
		require.Empty(t, w.effects("o"))

		_, stop := w.start(w.newer(shopped), w.broker)
		want := []string{"here: 1", "2", "there: 3"}
		w.until(func() bool { return len(w.effects("o")) == 3 }, "the new build handles them")
		got := w.effects("o")
		if got[1] == "unknown: 2" { // whichever build had it
			want[1] = got[1]
		}
		require.Equal(t, want, got)
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters WHERE message_id NOT IN ('bad', 'much newer') AND status <> 'replayed'"))

		// Both run on: the old one parks what it gets, and the new one has it at once.
		w.publish(message("later", placedV2, "o", `{"order_id":"o","note":"4","shop":"here"}`))
		w.until(func() bool { return len(w.effects("o")) == 4 }, "it is handled")
		for _, id := range []string{"new", `"new again"`, "later"} {
			require.LessOrEqual(t, len(w.logs.lines("parked in dead_letters\" subscription=shipping id="+id+" ")), 1, id)
		}
		require.Len(t, w.logs.lines("parked in dead_letters\" subscription=shipping id=new "), 1)
		require.Equal(t, "parked", status("much newer"), "which neither reads")
		stop()
	})
}

// N3: it is the same with what a handler finds in the database.
func TestNewerVersion_N3_OfWhatIsStored(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.streamOf(subscription.On(func(_ context.Context, e OrderPlaced) error {
			if e.OrderID == "sourced" {
				return fmt.Errorf("load it: %w", &domain.UnknownEventError{Name: placedV2, Known: placedV1})
			}
			return &domain.NewerStateError{Type: "crate", ID: "c", Key: "shipping::crate", Stored: 2, Known: 1}
		}))
		s.OnParked, s.MaxAttempts = subscription.Hold, 3
		old, _ := w.start(s, w.broker)
		w.publish(placed("o", "1"), placed("o", "2"), placed("sourced", "1"))
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		require.Equal(t, 2, w.count("SELECT count(*) FROM dead_letters WHERE reason = 'newer_version'"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE reason = 'held'"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE needs = 'stored:Ordering.OrderPlaced.v2'"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE needs = 'stored:shipping::crate.v2'"))
		listed, err := subscription.NewDeadLetters(w.provider).List(t.Context(), subscription.DeadLetterFilter{Reason: "newer_version"}, subscription.DeadLetterPage{})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"stored:Ordering.OrderPlaced.v2", "stored:shipping::crate.v2"}, []string{listed.Letters[0].Needs, listed.Letters[1].Needs}, "operators see it")
		require.Zero(t, old.Status().Retries, "another attempt would not mend it")

		// One that fails in the new build as well is not for it alone any more.
		var mended atomic.Bool
		n := w.newer(func(ctx context.Context, e OrderPlacedAt) error {
			if e.OrderID == "o" && !mended.Load() {
				return subscription.Park(context.Canceled)
			}
			return shopped(ctx, e)
		})
		_, stop := w.start(n, w.broker)
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE reason = 'parked' AND needs IS NULL") == 1
		}, "it is parked by the new build")
		mended.Store(true)
		_, err = subscription.NewDeadLetters(w.provider).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "shipping", Reason: "parked"}, subscription.ReplayOptions{Actor: "ada"})
		require.NoError(t, err)
		w.until(func() bool { return len(w.effects("o")) == 2 }, "both are handled")
		require.Equal(t, []string{"unknown: 1", "unknown: 2"}, w.effects("o"))
		require.Equal(t, []string{"unknown: 1"}, w.effects("sourced"))
		stop()
	})
}

// In a rolling deployment a handler comes, and fails at first: what waits for its next attempt isn't
// for builds that have no such handler. The first that has one goes on with it by itself.
func TestNewerVersion_N3_OfAHandlerThatCame(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		s := w.newer(func(ctx context.Context, e OrderPlacedAt) error {
			if !mended.Load() {
				return context.DeadlineExceeded
			}
			return shopped(ctx, e)
		})
		s.MaxAttempts = 3
		_, stop := w.start(s, w.broker)
		w.publish(message("new", placedV2, "o", `{"order_id":"o","note":"1","shop":"here"}`), message("next", placedV2, "o", `{"order_id":"o","note":"2","shop":"here"}`))
		w.until(w.acknowledged("shipping"), "both are in the table")
		stop()
		w.exec("UPDATE dead_letters SET status = 'waiting', due_at = first_at, reason = 'waiting' WHERE message_id = 'new'") // as where many wait

		old := s
		old.Handlers = []subscription.Handler{subscription.On(func(context.Context, OrderCancelled) error { return nil })}
		_, stop = w.start(old, w.broker)
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE message_id = 'new' AND status = 'parked' AND reason = 'newer_version' AND needs = ?", placedV2) == 1
		}, "a build without the handler leaves it alone")
		require.Contains(t, w.parked()[0].Error, "this build has no handler for")
		stop()

		mended.Store(true)
		_, stop = w.start(s, w.broker)
		w.until(func() bool { return len(w.effects("o")) == 2 }, "a build with the handler goes on")
		require.Equal(t, []string{"here: 1", "here: 2"}, w.effects("o"))
		stop()
	})
}
