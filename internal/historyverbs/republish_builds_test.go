package historyverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// starts is a program of the context that starts its engine, and publishes some events.
func (w *world) starts(renamed map[string]string, events ...string) {
	w.t.Helper()
	require.NoError(w.t, outboxdb.WriteRenamed(w.t.Context(), w.p.DB(), "library", renamed))
	require.NoError(w.t, outboxdb.WritePublished(w.t.Context(), w.p.DB(), "library", events))
}

// asWritten is a republication by who knows no domain.
func asWritten(r *historyverbs.Republish) { r.Published = nil }

// In a rolling deployment a program of before may start last, and not publish what others do: the
// partner would miss that, and nobody would know. So nothing is stored until one of the others has
// started, or who asks says that the partner isn't to get it.
func TestRepublish_ProgramsThatDifferInWhatTheyPublish(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		w.caused("k", newBook("b"))
		w.published()
		w.starts(nil, "Lost", "Noted")
		w.starts(nil, "Lost")
		for who, change := range map[string]func(r *historyverbs.Republish){
			"the one that started last": asWritten,
			"the one that asks":         func(r *historyverbs.Republish) { r.Published = []string{"Lost"} },
		} {
			for _, dryRun := range []bool{true, false} {
				_, err := w.republish(func(r *historyverbs.Republish) { change(r); r.DryRun = dryRun })
				require.ErrorContains(t, err, "programs of context library publish different events, and partner would not get Library.Noted.v1, which "+who+" doesn't publish")
			}
		}
		require.Empty(t, w.queued())

		_, err := w.republish(func(r *historyverbs.Republish) { asWritten(r); r.Target = "default" })
		require.NoError(t, err, "it isn't for partner")
		require.Equal(t, []string{"default b@1"}, w.queued())
		w.published()
		_, err = w.republish(func(r *historyverbs.Republish) {
			asWritten(r)
			r.Writer.External = []outbox.Target{{Broker: "partner", Events: []string{"Lost"}}}
		})
		require.NoError(t, err, "partner doesn't want it")
		require.Equal(t, []string{"default b@1"}, w.queued())
		w.published()
		w.starts(nil, "Lost", "Noted")
		_, err = w.republish(asWritten)
		require.NoError(t, err)
		require.Equal(t, []string{"default b@1", "partner b@1"}, w.queued())
	})
}

// What has another name by now is published under that, and what nobody has published is nothing
// that a partner would miss.
func TestRepublish_ProgramsThatDifferInWhatNobodyMisses(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		w.caused("k", newBook("b"))
		w.published()
		w.starts(nil, "Noted")
		w.starts(map[string]string{"Library.Noted": "Marked"}, "Marked")
		_, err := w.republish(asWritten)
		require.NoError(t, err)
		require.Equal(t, []string{"default b@1", "partner b@1"}, w.queued())

		w.published()
		w.exec("DELETE FROM outbox_settings WHERE name LIKE '%published:%'")
		w.starts(nil, "Lost")
		_, err = w.republish(asWritten)
		require.NoError(t, err)
		require.Equal(t, []string{"default b@1"}, w.queued())
	})
}
