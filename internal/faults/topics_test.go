package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/internal/chaos"
)

// kinds are the topics of branches.
var kinds = []string{chaos.AccountTopic, "faults.vault", "faults.ledger"}

// newBranches is a world on the Kafka of this package, with n branches, whose kinds
// have a topic each.
func newBranches(t *testing.T, n int) *world {
	t.Helper()
	w := newWorldOn(t, ownKafka.up(t), 0, 1<<20)
	for _, kind := range kinds[1:] {
		w.createTopic(kind, 1<<20)
	}
	b := newBranch(w.units)
	for i := range n {
		require.NoError(t, b.save(t.Context(), i))
	}
	return w
}

func withBranches(c *nodeConfig) { c.Branches = true }

// branchWriter starts a process of writers that change branches.
func (w *world) branchWriter(n, writers int, pause time.Duration) *process {
	w.t.Helper()
	return w.run(fmt.Sprintf("writer-%d", len(w.nodes)+1), nodeConfig{
		Role: "writer", DSN: w.dsn, Branches: true, Accounts: n, Writers: writers, Pause: pause,
	})
}

// forbid has nobody write to a topic, until permit.
func (w *world) forbid(topic string) {
	w.t.Helper()
	admin, name := w.admin(), w.prefix+topic
	// A topic with any rule allows nothing but what is allowed.
	for _, rule := range []*kadm.ACLBuilder{
		kadm.NewACLs().Deny("User:*").DenyHosts("*").Operations(kadm.OpWrite),
		kadm.NewACLs().Allow("User:*").AllowHosts("*").Operations(kadm.OpAll),
	} {
		made, err := admin.CreateACLs(context.Background(), rule.Topics(name).ResourcePatternType(kadm.ACLPatternLiteral))
		require.NoError(w.t, err)
		for _, m := range made {
			require.NoError(w.t, m.Err)
		}
	}
	eventually(w.t, func() bool { return w.tryToTell(topic) != nil }, "nobody may write to %s", topic)
	// Between the two rules Kafka shows the topic to nobody.
	eventually(w.t, func() bool {
		topics, err := admin.ListTopics(context.Background())
		require.NoError(w.t, err)
		return topics.Has(name)
	}, "%s is seen", topic)
}

func (w *world) permit(topic string) {
	w.t.Helper()
	_, err := w.admin().DeleteACLs(context.Background(), kadm.NewACLs().Topics(w.prefix+topic).ResourcePatternType(kadm.ACLPatternLiteral).
		Allow().AllowHosts().Deny().DenyHosts().Operations())
	require.NoError(w.t, err)
}

// remove deletes a topic, and remembers what it had: nobody may write to it before.
func (w *world) remove(topic string) {
	w.t.Helper()
	w.forbid(topic)
	name := w.prefix + topic
	w.gone = append(w.gone, w.inKafka(name)...)
	w.lives[name]++
	_, err := w.admin().DeleteTopic(context.Background(), name)
	require.NoError(w.t, err)
	w.permit(topic)
}

// create makes a topic that was removed, unless an engine that started has done so.
func (w *world) create(topic string) {
	w.t.Helper()
	admin := w.admin()
	eventually(w.t, func() bool {
		_, err := admin.CreateTopic(context.Background(), partitions, -1, nil, w.prefix+topic)
		return err == nil || errors.Is(err, kerr.TopicAlreadyExists)
	}, "%s is made", topic)
}

// of is a condition: rows for a topic.
func of(topic string) string {
	return fmt.Sprintf("seq IN (SELECT seq FROM outbox_messages WHERE stream_category = '%s')", strings.Replace(topic, ".", "::", 1))
}

// publishedSince is how many rows of other topics were published since a time.
func (w *world) publishedSince(since, butOf string) int {
	w.t.Helper()
	return w.count("witness WHERE new = 'published' AND at > $1::timestamptz AND NOT "+of(butOf), since)
}

// O1: of three topics one after the other may not be written to, or is deleted, while
// writers go on: its rows wait, pay nothing and follow, those of the others go on.
func unwritable(t *testing.T) {
	w := newBranches(t, 20)
	w.engine(withBranches)
	w.engine(withBranches)
	writer := w.branchWriter(20, 4, 20*time.Millisecond)
	for _, fault := range []struct {
		topic      string
		from, till func(string)
	}{
		{kinds[0], w.forbid, w.permit},
		{kinds[1], w.remove, w.create},
	} {
		w.publishes(100)
		fault.from(fault.topic)
		since := w.now()
		eventually(t, func() bool { return w.waiting(of(fault.topic)) > 100 && w.publishedSince(since, fault.topic) > 300 }, "others go on")
		require.Zero(t, w.count("outbox_queue WHERE attempts > 0"), "nobody pays")
		fault.till(fault.topic)
		last := w.strings("SELECT max(seq) FROM outbox_messages")[0]
		begin := time.Now()
		eventually(t, func() bool { return w.waiting("seq <= "+last) == 0 }, "the rows follow")
		t.Logf("%s: all that waited is published %v later", fault.topic, time.Since(begin))
	}
	writer.terminate()
	w.drain()
	r := w.check()
	require.Zero(t, r.Abandoned+r.Paid+r.Odd())
}

// turn is for how long a topic is shut, and then is not.
const turn = 7 * time.Second

// stormy is what a storm does to topics.
type stormy struct {
	w      *world
	topic  string // "": none is shut
	mend   func(string)
	since  string
	begun  time.Time
	others int
}

func (s *stormy) begin(topic string, remove bool) {
	s.topic, s.mend = topic, s.w.permit
	if remove {
		s.mend = s.w.create
		s.w.remove(topic)
	} else {
		s.w.forbid(topic)
	}
	s.since, s.begun = s.w.now(), time.Now()
}

func (s *stormy) end() {
	if s.topic != "" {
		n := s.w.publishedSince(s.since, s.topic)
		s.others += n
		if time.Since(s.begun) > turn { // the storm may be just over
			require.Positive(s.w.t, n, "while %s was shut, others went on", s.topic)
		}
		s.mend(s.topic)
	}
	s.topic = ""
}

// storm: every six seconds an engine is killed with -9 and started again, while topics
// may not be written to, or are deleted, in turns, and writers go on. Nothing is
// lost, invented, out of order or abandoned, and nothing comes twice but what was in
// the hand of who was killed.
func storm(t *testing.T) {
	random, lasts := chance(t), stormLasts(t)
	w := newBranches(t, 40)
	engine := func() *process {
		return w.node(withBranches, lease(10*time.Second), func(c *nodeConfig) { c.Outbox.BatchSize, c.Outbox.PublishTimeout = 500, 5*time.Second })
	}
	engines := []*process{engine(), engine(), engine(), engine()}
	for _, e := range engines {
		e.until("running", 1)
	}
	writers := []*process{w.branchWriter(40, 4, 20*time.Millisecond), w.branchWriter(40, 4, 20*time.Millisecond)}
	topics := stormy{w: w}
	kills, turns := time.NewTicker(6*time.Second), time.NewTimer(turn)
	defer kills.Stop()
	defer turns.Stop()
	for over := time.After(lasts); over != nil; {
		select {
		case <-kills.C:
			i := random.IntN(len(engines))
			w.kill(engines[i])
			engines[i] = engine()
		case <-turns.C:
			if topics.topic != "" {
				topics.end()
			} else {
				topics.begin(kinds[random.IntN(len(kinds))], random.IntN(2) == 0)
			}
			turns.Reset(turn)
		case <-over:
			over = nil
		}
	}
	topics.end()
	for _, p := range writers {
		p.terminate()
	}
	begin := time.Now()
	w.drain()
	t.Logf("in %v %d rows of other topics were published while one was shut; the last row followed %v after the end", lasts, topics.others, time.Since(begin))
	r := w.check()
	require.Positive(t, r.Incidents["kills"])
	require.Zero(t, r.Abandoned+r.Paid)
	require.Less(t, r.Worst, 1000, "hundreds at most")
	for _, e := range slices.Clone(engines) {
		e.until("running", 1)
		e.terminate()
	}
}
