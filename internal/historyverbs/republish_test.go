package historyverbs_test

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

var partner = outbox.Target{Broker: "partner", Extensions: []string{"x"}}

var microseconds = regexp.MustCompile(`(\d\d\d)\d\d\dZ`)

// withPartner is a context with a history and a partner.
func (w *world) withPartner() {
	w.t.Helper()
	w.exec(`UPDATE outbox_settings SET value = '{"broker": "default", "external": ["partner"], "history": "on"}' WHERE name = 'targets:library'`)
	units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{w.p}, History: true, External: []outbox.Target{partner}})
	require.NoError(w.t, err)
	w.units, w.books, w.loans = units, repository.New[*Book](units), repository.EventSourced[*Loan](units)
}

// published has all rows published; forgotten has their bodies removed as well.
func (w *world) published() { w.exec("DELETE FROM outbox_queue") }

func (w *world) forgotten() {
	w.published()
	w.exec("DELETE FROM outbox_messages")
}

// queued are the rows that wait to be published, as "<target> <aggregate>@<version>.<n>", in
// their order.
func (w *world) queued() (all []string) {
	w.t.Helper()
	rows, err := w.p.Reader().QueryContext(w.t.Context(), `SELECT l.target, b.aggregate_id, b.aggregate_version FROM outbox_queue AS q
		JOIN outbox_messages AS b ON b.seq = q.seq JOIN outbox_lanes AS l ON l.id = b.lane ORDER BY q.seq`)
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, rows.Close()) }()
	for rows.Next() {
		var target, id string
		var version int64
		require.NoError(w.t, rows.Scan(&target, &id, &version))
		all = append(all, fmt.Sprintf("%s %s@%d", target, id, version))
	}
	require.NoError(w.t, rows.Err())
	return all
}

// republish is one by its causation "k".
func (w *world) republish(change func(r *historyverbs.Republish)) (historyverbs.RepublishedToTarget, error) {
	r := historyverbs.Republish{
		Chosen: historyverbs.Chosen{Causation: "k"}, Context: "library", Actor: "ada", Published: []string{"Noted"},
		Writer: outbox.Writer{Internal: "default", External: []outbox.Target{partner}},
	}
	if change != nil {
		change(&r)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	return r.Run(ctx, w.p)
}

// caused saves a book whose events have a cause.
func (w *world) caused(by string, b *Book) {
	w.t.Helper()
	b.Raise(Noted{Text: "?"})
	ctx := domain.WithOrigin(w.t.Context(), domain.Origin{CausationID: by, CorrelationID: "c-" + by, Extensions: map[string]string{"x": "y"}})
	require.NoError(w.t, w.books.Save(ctx, b))
}

// What a command raised gets rows again, whether the outbox still has it or not, with the same
// bytes, for each target that gets it, and in its order.
func TestRepublish_U14_WhatACommandRaised(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		b := newBook("b")
		w.caused("other", b)
		w.caused("k", b)
		ctx := domain.WithOrigin(t.Context(), domain.Origin{CausationID: "k"})
		l := &Loan{Root: domain.RootWithID("l")}
		domain.Record(l, Placed{})
		require.NoError(t, w.loans.Save(ctx, l))
		w.caused("k", b)
		type body struct{ MessageID, Payload, Type, Topic string }
		bodies := func() (all []body) {
			require.NoError(t, w.p.DB().NewRaw(`SELECT CAST(b.message_id AS text) AS message_id, b.payload, b.message_type AS type, coalesce(b.topic, '') AS topic FROM outbox_messages AS b
				JOIN outbox_lanes AS l ON l.id = b.lane WHERE b.causation_id = 'k' ORDER BY l.target, b.seq`).Scan(t.Context(), &all))
			for i, b := range all { // SQLite keeps those of event-sourced aggregates to the millisecond
				all[i].Payload = microseconds.ReplaceAllString(b.Payload, "${1}Z")
			}
			return all
		}
		before := bodies()
		require.Len(t, before, 5)
		want := []string{"default b@2", "partner b@2", "default l@1", "default b@3", "partner b@3"}

		for name, gone := range map[string]func(){"published": w.published, "removed": w.forgotten} {
			gone()
			found, err := w.republish(func(r *historyverbs.Republish) { r.DryRun, r.Actor = true, "" })
			require.NoError(t, err)
			require.Equal(t, []int64{3, 5}, []int64{found.Events, found.Rows})
			require.Empty(t, w.queued(), name)
			done, err := w.republish(nil)
			require.NoError(t, err)
			require.Equal(t, []int64{3, 5, 0, 0}, []int64{done.Events, done.Rows, done.Waiting, done.Abandoned})
			require.Equal(t, want, w.queued(), name)
			require.Equal(t, before, bodies(), "their ids and bytes")
			var rows []int64
			require.NoError(t, w.p.DB().NewRaw("SELECT rows FROM outbox_actions WHERE action = 'history-republish' AND actor = 'ada' AND id = ?", done.Action).Scan(t.Context(), &rows))
			require.Equal(t, []int64{5}, rows)
		}
		done, err := w.republish(nil)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 5, 0}, []int64{done.Rows, done.Waiting, done.Action}, "they are going to be published anyway")
		require.Equal(t, want, w.queued())
	})
}

// At the greatest positions that there can be, the history is read, republished and copied for a
// broker that joins, as anywhere: nothing adds to them what they have no room for.
func TestRepublish_TheGreatestPositions(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		b := newBook("b")
		w.caused("k", b)
		w.caused("k", b)
		w.exec("UPDATE history SET position = ? WHERE version = 2", int64(math.MaxInt64-1))
		w.forgotten()
		done, err := w.republish(nil)
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Events)
		require.Equal(t, []string{"b@1.1", "b@2.1"}, places(w.read()))
	})
}

func TestRepublish_Chosen(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		b, c := newBook("b"), newBook("c")
		w.caused("k", b)
		w.caused("k", c)
		w.caused("other", c)
		var second kept
		require.NoError(t, w.p.DB().NewRaw("SELECT CAST(message_id AS text) AS message_id, position FROM history WHERE id = 'c' AND version = 1").Scan(t.Context(), &second))
		w.exec("INSERT INTO outbox_abandoned (seq, lane, part, key, attempts, losses, maybe_delivered) SELECT seq, lane, part, key, 1, 0, FALSE FROM outbox_messages WHERE aggregate_id = 'b' AND lane = (SELECT id FROM outbox_lanes WHERE target = 'partner')")
		for _, test := range []struct {
			choose historyverbs.Chosen
			target string
			want   []string
		}{
			{historyverbs.Chosen{Causation: "other"}, "", []string{"default c@2", "partner c@2"}},
			{historyverbs.Chosen{Correlation: "c-k"}, "default", []string{"default b@1", "default c@1"}},
			{historyverbs.Chosen{Category: "library::book", AggregateID: "c"}, "partner", []string{"partner c@1", "partner c@2"}},
			{historyverbs.Chosen{MessageIDs: []string{second.MessageID}}, "default", []string{"default c@1"}},
			{historyverbs.Chosen{Causation: "k", After: second.Position - 1}, "default", []string{"default c@1"}},
			{historyverbs.Chosen{Causation: "k"}, "partner", []string{"partner c@1"}}, // the other one was abandoned
			{historyverbs.Chosen{Causation: "' OR 'a' = 'a"}, "", nil},
		} {
			w.published()
			done, err := w.republish(func(r *historyverbs.Republish) { r.Chosen, r.Target, r.Rate = test.choose, test.target, 1000 })
			require.NoError(t, err)
			require.Equal(t, test.want, w.queued(), test.choose)
			require.EqualValues(t, len(test.want), done.Rows)
		}
		for want, change := range map[string]func(r *historyverbs.Republish){
			"nothing is chosen":      func(r *historyverbs.Republish) { r.Chosen = historyverbs.Chosen{} },
			"of which category":      func(r *historyverbs.Republish) { r.AggregateID = "b" },
			"are UUIDs":              func(r *historyverbs.Republish) { r.MessageIDs = []string{"x"} },
			"Actor is missing":       func(r *historyverbs.Republish) { r.Actor = "" },
			"Rate is -1":             func(r *historyverbs.Republish) { r.Rate = -1 },
			"and not to nobody":      func(r *historyverbs.Republish) { r.Target = "nobody" },
			"does not know context":  func(r *historyverbs.Republish) { r.Context = "none" },
			"in the configuration t": func(r *historyverbs.Republish) { r.Writer.External = nil },
		} {
			_, err := w.republish(change)
			require.ErrorContains(t, err, want)
		}
		w.exec(`UPDATE outbox_settings SET value = '{"broker": "default", "external": ["partner"], "joining": ["partner"], "history": "on"}' WHERE name = 'targets:library'`)
		_, err := w.republish(nil)
		require.ErrorContains(t, err, "broker partner is joining: run `waybill outbox backfill` first")

		// Where none are kept any more those that were can be chosen, and that there are none is no wonder.
		w.exec(`UPDATE outbox_settings SET value = '{"broker": "default", "external": ["partner"]}' WHERE name = 'targets:library'`)
		done, err := w.republish(func(r *historyverbs.Republish) { r.Causation, r.DryRun = "other", true })
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Events)
		_, err = w.republish(func(r *historyverbs.Republish) { r.Causation = "nobody" })
		require.ErrorContains(t, err, "the database keeps no history of context library: set uow.Config.History")
	})
}

type kept struct {
	MessageID string
	Position  int64
}

// Where it ends early it says how to go on; and several at a time give each event one row.
func TestRepublish_EndedInTheMiddleAndSideBySide(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		b := newBook("b")
		var want []string
		for range 600 {
			b.Raise(Noted{Text: "?"})
		}
		require.NoError(t, w.books.Save(t.Context(), b))
		w.forgotten()
		choose := historyverbs.Republish{
			Chosen: historyverbs.Chosen{Category: "library::book"}, Context: "library", Actor: "ada", Target: "partner",
			Writer: outbox.Writer{Internal: "default", External: []outbox.Target{partner}}, Published: []string{"Noted"},
		}
		ctx, cancel := context.WithCancel(t.Context())
		choose.Progress = func(historyverbs.RepublishedToTarget) { cancel() }
		done, err := choose.Run(ctx, w.p)
		require.ErrorContains(t, err, fmt.Sprintf("with 500 rows stored; what was chosen up to position %d has its rows: go on with --after=%[1]d: ", done.Last))
		require.NotContains(t, err.Error(), "run it again", "which would store again what was published meanwhile")
		var asked string
		require.NoError(t, w.p.DB().NewRaw("SELECT CAST(filter AS text) FROM outbox_actions WHERE id = ?", done.Action).Scan(t.Context(), &asked))
		require.Regexp(t, fmt.Sprintf(`"last_position": ?%d\b`, done.Last), asked, "for one that is killed")
		require.EqualValues(t, 500, done.Rows)
		all, err := engine.RepublishHistory(t.Context(), w.units, engine.Republish{Category: "library::book", After: done.Last, Target: "partner", Actor: "ada"})
		require.NoError(t, err)
		require.Equal(t, engine.Republished{Events: 100, Rows: 100}, all)
		for range 600 {
			want = append(want, "partner b@1")
		}
		require.Equal(t, want, w.queued())

		w.published()
		choose.Progress = nil
		errs := make([]error, 3)
		var all3 sync.WaitGroup
		for i := range errs {
			all3.Go(func() { _, errs[i] = choose.Run(t.Context(), w.p) })
		}
		all3.Wait()
		require.Equal(t, make([]error, 3), errs)
		require.Equal(t, want, w.queued())
	})
}

// A rate bounds what it stores, not what follows in the keys.
func TestRepublish_Rate(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.withPartner()
		b := newBook("b")
		for range 5 {
			w.caused("k", b)
		}
		w.published()
		began := time.Now()
		var so []int64
		_, err := w.republish(func(r *historyverbs.Republish) {
			r.Target, r.Rate = "default", 20
			r.Progress = func(p historyverbs.RepublishedToTarget) { so = append(so, p.Rows) }
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), 5*time.Second/20)
		require.Equal(t, int64(5), so[len(so)-1])
		var later int
		require.NoError(t, w.p.DB().NewRaw("SELECT count(*) FROM outbox_queue WHERE due_at IS NOT NULL").Scan(t.Context(), &later))
		require.Zero(t, later)
		require.True(t, slices.IsSortedFunc(w.queued(), strings.Compare))
	})
}
