package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

// A dump that is restored into the same database while a process runs gives numbers again:
// rows that get them are published all the same, in order, and the log says why.
func TestRestore_NumbersThatAreGivenAgainArePublished(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		ids := w.commit(p, 3, 5)
		w.delivered(time.Minute)
		restore := w.store.Backup()
		lost := w.commit(p, 20, 5)
		w.delivered(time.Minute)
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble

		restore()
		time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble
		for key, more := range w.commit(p, 3, 5) {
			ids[key] = append(append(ids[key], lost[key]...), more...)
		}
		w.delivered(time.Minute)
		w.inOrder(ids)
		require.Equal(t, 1, w.logs.count("the database gives numbers again that rows had before"))
	})
}

// A database that was restored to before a target had its lane has given the lane's number to
// another. The process doesn't publish that one's rows, and says what helps; its other lanes go on.
func TestRestore_ALaneThatIsAnothersIsNotJoined(t *testing.T) {
	inWorld(t, func(w *world) {
		_, _, err := w.store.Lanes(w.Context(), []string{"partner"})
		require.NoError(t, err)
		restore := w.store.Backup()
		partner := &connection{Broker: memory.New(memory.Config{})}
		p := w.start(func(_ *process, cfg *relay.Config) {
			cfg.Lanes = append(cfg.Lanes, relay.Lane{Target: "partner", Broker: partner, External: true})
		})
		w.ready(map[*process]int{p: 8})

		restore()
		_, _, err = w.store.Lanes(w.Context(), []string{"another"})
		require.NoError(t, err)
		w.until(time.Minute, "the log says what helps", func() bool { return w.logs.count("restart this process") == 1 })
		w.until(time.Minute, "the partner's lane goes on", func() bool { return p.Status()["partner"].Partitions == 8 })
		require.Zero(t, p.Status()[target].Partitions)
		w.store.InsertRows(relaytest.Row("another", topic, "key"))
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		require.Empty(t, w.ids("key"))
	})
}

// Rows of partitions that somebody removes are made again, when nobody thinks any more that one
// is his; until then health and the log say what is missing.
func TestShare_PartitionsThatSomebodyRemovesAreMadeAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.start(), w.start()
		w.ready(map[*process]int{a: 4, b: 4})
		w.store.RemovePartitions()
		removed := time.Now()
		w.until(time.Minute, "the log says it", func() bool { return w.logs.count("8 of the 8 partitions of target") >= 1 })
		w.until(2*time.Minute, "they are shared again", func() bool { return len(w.store.Owned(target)) == 2 })
		require.GreaterOrEqual(t, time.Since(removed), 10*time.Second, "the lease")
		w.ready(map[*process]int{a: 4, b: 4})
		w.commit(a, 2, 5)
		w.delivered(time.Minute)
	})
}

// A number that a transaction had drawn which the server's crash ended is given again. Who
// draws it then may commit behind those that come after it.
func TestCrash_NumbersThatAreGivenAgainArePublished(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		ids := w.commit(p, 1, 5)
		w.delivered(time.Minute)
		ended := w.store.Begin()
		ended.Insert(relaytest.Row(target, topic, "key-0"))
		ended.Rollback()
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble

		w.store.Crash()
		w.store.GiveAgain(5)
		slow, row := w.store.Begin(), relaytest.Row(target, topic, "key-0")
		slow.Insert(row)
		ids["key-0"] = append(ids["key-0"], row.MessageID)
		w.insert(p, "other")
		w.until(time.Minute, "the other is published", func() bool { return len(w.ids("other")) == 1 })
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		p.Wake(slow.Commit())
		w.delivered(time.Minute)
		w.inOrder(ids)
	})
}

// A broker comes back from an outage without its topics, as an empty one has taken its place:
// the log and the lane's status say so in its words, once, and once that they are there again.
func TestOutage_ATopicThatDoesNotComeBackIsNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		p.broker.down(true)
		ids := w.commit(p, 3, 5)
		w.until(time.Minute, "the outage is told", func() bool { return w.logs.count("the broker does not answer") == 1 })
		missing := broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("no such topic"))
		p.broker.through(func(context.Context, []broker.Message) error { return missing })
		w.until(time.Minute, "the topic is named", func() bool { return p.Status()[target].TopicError == "no such topic" })
		require.Equal(t, []string{topic}, p.Status()[target].OpenTopics)
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		require.Equal(t, 1, w.logs.count("no such topic"))
		require.Equal(t, 1, w.logs.count("the broker answers again"))
		p.broker.down(false)
		w.delivered(time.Minute)
		w.inOrder(ids)
		require.Equal(t, 2, w.logs.count("the broker answers again"))
		require.Equal(t, 2, w.logs.count("the broker does not answer"))
	})
}

// A topic stays away for another reason than it went: the lane's status has what keeps it away
// now, as that is what somebody can mend. The log has its one line.
func TestOutage_ATopicsStatusHasTheBrokersLastWords(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		say := func(words string) {
			err := broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New(words))
			p.broker.through(func(context.Context, []broker.Message) error { return err })
			w.until(time.Minute, words, func() bool { return p.Status()[target].TopicError == words })
		}
		ids := w.commit(p, 3, 5)
		say("no leader")
		say("no such topic")
		require.Equal(t, 1, w.logs.count("the broker does not answer"))
		p.broker.down(false)
		w.delivered(time.Minute)
		w.inOrder(ids)
		require.Empty(t, p.Status()[target].TopicError)
	})
}
