package faults

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// evidence is what is left when the processes are gone.
type evidence struct {
	rows           []row            // in the order of seq
	steps          []step           // in the order in which they happened
	moves          map[string]int64 // by account: how many events its document has seen
	deliveries     []delivery       // in the order of each partition
	incidents      []incident
	thefts         []string
	endings        []ending
	stale          int // rows of write-backs that engines said came too late
	takenOver      int // rows that engines said they took over
	mayBeAbandoned []string
}

type row struct {
	seq              int64
	id, key, status  string
	class            string
	attempts, losses int
	held             bool // and so are those of its key behind it
	body             []byte
}

// step is a change of a row's status, as the database saw it.
type step struct {
	seq      int64
	at       time.Time
	old, new string
	owner    string // who has the row, or had it
	member   int64
	claim    int64 // of the member
	lost     bool  // a takeover
	paid     bool  // It cost an attempt.
}

type delivery struct {
	topic     string
	life      int // of the topic: how often it was deleted before
	partition int32
	offset    int64
	id, key   string
	body      []byte
}

// incident is what was done to a process, or with PID 0 to Kafka.
type incident struct {
	Kind        string
	PID         int
	From, Until time.Time
}

// report is the verdict. There must be no violations.
type report struct {
	events, deliveries, duplicates int
	reasons                        map[string]int // of duplicates
	incidents                      map[string]int
	taken, stale, takenOver        int
	paid                           int // attempts, besides those of unanswered calls
	abandoned                      int
	worst                          int // duplicates that one kill made
	violations                     []string
}

func (r report) String() string {
	return fmt.Sprintf("%d events, %d deliveries, %d duplicates (%s; at most %d by one kill), %s, %d rows taken over (%d of them reported), %d stale write-backs, %d attempts paid, %d abandoned",
		r.events, r.deliveries, r.duplicates, counts(r.reasons), r.worst, counts(r.incidents), r.taken, r.takenOver, r.stale, r.paid, r.abandoned)
}

// odd is how many duplicates there are besides those of a Kafka that was too busy
// to answer in time, for tests that expect none.
func (r report) odd() int { return r.duplicates - r.reasons["unanswered call"] }

func counts(by map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, by[name]))
	}
	return strings.Join(parts, ", ")
}

// slack is how far two looks at the same clock may be apart: a transaction of a
// process that is already dead may still commit.
const slack = time.Second

func (e evidence) judge() report {
	r := report{
		events: len(e.rows), deliveries: len(e.deliveries), reasons: map[string]int{}, incidents: map[string]int{},
		stale: e.stale, takenOver: e.takenOver,
	}
	violation := func(format string, args ...any) { r.violations = append(r.violations, fmt.Sprintf(format, args...)) }
	for _, theft := range e.thefts {
		violation("stolen: %s", theft)
	}
	for _, g := range e.endings {
		if g.stolen(e.incidents) {
			violation("stolen: the membership of %s was ended %s before its lease by %s", g.name, g.early, g.by)
		}
	}
	for _, i := range e.incidents {
		r.incidents[i.Kind+"s"]++
	}
	byID := map[string]row{}
	for _, row := range e.rows {
		byID[row.id] = row
	}

	// Each partition's order is Kafka's, and a key is in one of them.
	times := map[string]int{} // by id
	first := map[string][]row{}
	home := map[string]string{}
	for _, d := range e.deliveries {
		row, known := byID[d.id]
		if !known {
			violation("ghost: %s, partition %d, offset %d has message %s, which was never committed", d.topic, d.partition, d.offset, d.id)
			continue
		}
		if d.key != row.key || !bytes.Equal(d.body, row.body) {
			violation("changed: message %s of row %d is not what the row has", d.id, row.seq)
		}
		place, key := fmt.Sprintf("%s, partition %d", d.topic, d.partition), fmt.Sprintf("%s %d", d.key, d.life)
		if at, ok := home[key]; ok && at != place {
			violation("disorder: key %s is in %s and in %s", d.key, at, place)
		}
		home[key] = place
		if times[d.id]++; times[d.id] == 1 {
			if before := first[d.key]; len(before) > 0 && before[len(before)-1].seq > row.seq {
				violation("disorder: key %s: row %d came first after row %d", d.key, row.seq, before[len(before)-1].seq)
			}
			first[d.key] = append(first[d.key], row)
		}
	}

	abandoned, held := map[string]bool{}, map[string]bool{} // keys
	for _, row := range e.rows {
		switch {
		case held[row.key]:
			if row.status != "pending" || times[row.id] > 0 {
				violation("disorder: row %d stands behind a held one, and is %s and %d times in Kafka", row.seq, row.status, times[row.id])
			}
		case row.status == "abandoned":
			r.abandoned++
			abandoned[row.key], held[row.key] = true, row.held
			if !slices.Contains(e.mayBeAbandoned, row.id) {
				violation("abandoned: row %d, class %q, attempts %d, losses %d", row.seq, row.class, row.attempts, row.losses)
			}
		case row.status != "published":
			violation("unfinished: row %d is %s", row.seq, row.status)
		case times[row.id] == 0:
			violation("lost: row %d is published, and message %s is not in Kafka", row.seq, row.id)
		}
	}

	// The same without the outbox: an account that has seen n events has told of
	// 1 to n.
	next := map[string]int64{}
	for key, rows := range first {
		for _, row := range rows {
			next[key]++
			if n := moved(row.body); n != next[key] && !abandoned[key] {
				violation("disorder: key %s: event %d came first where %d should", key, n, next[key])
			}
		}
	}
	for id, n := range e.moves {
		if next[id] != n && !abandoned[id] {
			violation("lost: account %s has seen %d events and %d were published", id, n, next[id])
		}
	}
	e.explain(&r, times, violation)
	return r
}

// explain finds for every delivery but the first a claim of its row that did not
// end in published, and a fault that befell its owner while it had the row.
func (e evidence) explain(r *report, times map[string]int, violation func(string, ...any)) {
	type claim struct {
		from step
		end  step
	}
	type token struct{ seq, member, claim int64 }
	open := map[token]step{}
	ended := map[int64][]claim{} // by seq: the claims that did not end in published
	// happened finds what befell a claim's owner while it had the row.
	happened := func(c claim, kind string) int {
		pid := pidOf(c.from.owner)
		return slices.IndexFunc(e.incidents, func(i incident) bool {
			return (kind == "" || i.Kind == kind) && (i.PID == 0 || i.PID == pid) &&
				!i.From.After(c.end.at.Add(slack)) && !i.Until.Before(c.from.at.Add(-slack))
		})
	}
	for _, s := range e.steps {
		switch {
		case s.new == "processing":
			open[token{s.seq, s.member, s.claim}] = s
		case s.old == "processing":
			if s.lost {
				r.taken++
			}
			c := claim{open[token{s.seq, s.member, s.claim}], s}
			if s.new != "published" {
				ended[s.seq] = append(ended[s.seq], c)
			}
			if s.paid && happened(c, "unanswered call") < 0 {
				r.paid++
			}
		}
	}
	by := map[int]int{} // incident
	for _, row := range e.rows {
		extra := times[row.id] - 1
		if extra <= 0 {
			continue
		}
		r.duplicates += extra
		for _, c := range ended[row.seq] {
			if extra == 0 {
				break
			}
			if i := happened(c, ""); i >= 0 {
				r.reasons[e.incidents[i].Kind]++
				if by[i]++; e.incidents[i].Kind == "kill" {
					r.worst = max(r.worst, by[i])
				}
				extra--
			}
		}
		if extra > 0 {
			violation("unexplained: message %s of row %d is %d times in Kafka, and nothing happened to %d of its claims", row.id, row.seq, times[row.id], extra)
		}
	}
}

// pidOf reads a member's name: host, process, unique part.
func pidOf(owner string) int {
	parts := strings.Split(owner, "-")
	if len(parts) < 3 {
		return -1
	}
	pid, err := strconv.Atoi(parts[len(parts)-2])
	if err != nil {
		return -1
	}
	return pid
}

// sound is the evidence of a run in which one row was published twice because its
// engine was killed.
func sound() evidence {
	var e evidence
	at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	e.moves = map[string]int64{"account-1": 3, "account-2": 3}
	for seq := range int64(6) {
		key := "account-" + strconv.FormatInt(seq%2+1, 10)
		id := fmt.Sprintf("m%d", seq)
		body := fmt.Appendf(nil, `{"data":{"number":%d}}`, seq/2+1)
		e.rows = append(e.rows, row{seq: seq, id: id, key: key, status: "published", attempts: 1, body: body})
		d := delivery{topic: "t", partition: int32(seq % 2), offset: seq / 2, id: id, key: key, body: body}
		e.deliveries = append(e.deliveries, d)
		e.steps = append(e.steps,
			step{seq: seq, at: at, old: "pending", new: "processing", owner: "some-host-41-aa", claim: 1},
			step{seq: seq, at: at.Add(time.Second), old: "processing", new: "published", owner: "some-host-41-aa", claim: 1})
	}
	again := e.deliveries[5]
	again.offset++
	e.deliveries = append(e.deliveries, again)
	e.steps = slices.Insert(e.steps, 10,
		step{seq: 5, at: at.Add(-time.Minute), old: "pending", new: "processing", owner: "some-host-40-aa", claim: 0},
		step{seq: 5, at: at.Add(-time.Second), old: "processing", new: "pending", owner: "some-host-40-aa", claim: 0, lost: true})
	kill := at.Add(-30 * time.Second)
	e.incidents = []incident{{Kind: "kill", PID: 40, From: kill, Until: kill}}
	e.endings = []ending{{kill, "some-host-41-aa", sessions(41), ""}, {kill, "some-host-40-aa", sessions(41), ""}}
	return e
}

// C-91, C-92, C-93, C-94, C-95, C-96: the checker finds what is wrong, each kind of
// it, and nothing in what is sound.
func TestChecker_CanFail(t *testing.T) {
	r := sound().judge()
	require.Empty(t, r.violations)
	require.Equal(t, 6, r.events)
	require.Equal(t, 7, r.deliveries)
	require.Equal(t, 1, r.duplicates)
	require.Equal(t, map[string]int{"kill": 1}, r.reasons)
	require.Equal(t, 1, r.worst)
	require.Equal(t, 1, r.taken)

	for name, c := range map[string]struct {
		spoil func(e *evidence)
		finds string
	}{
		"lost in Kafka": {func(e *evidence) { e.deliveries = slices.Delete(e.deliveries, 4, 5) }, "lost: row 4"},
		"lost in the outbox": {func(e *evidence) {
			e.rows = slices.Delete(e.rows, 4, 5)
			e.deliveries = slices.Delete(e.deliveries, 4, 5)
		}, "lost: account account-1"},
		"ghost": {func(e *evidence) {
			e.deliveries = append(e.deliveries, delivery{topic: "t", id: "m9", key: "account-1"})
		}, "ghost"},
		"swapped pair": {func(e *evidence) {
			e.deliveries[0], e.deliveries[2] = e.deliveries[2], e.deliveries[0]
		}, "disorder: key account-1: row 0 came first after row 2"},
		"rows in another order than the state": {func(e *evidence) {
			a, b := &e.rows[0], &e.rows[2]
			a.body, b.body = b.body, a.body
			e.deliveries[0].body, e.deliveries[2].body = a.body, b.body
		}, "disorder: key account-1: event 2 came first where 1 should"},
		"key in two partitions": {func(e *evidence) { e.deliveries[4].partition = 1 }, "disorder: key account-1 is in"},
		"changed":               {func(e *evidence) { e.deliveries[0].body = []byte("{}") }, "changed: message m0"},
		"another key":           {func(e *evidence) { e.deliveries[0].key = "account-2" }, "changed: message m0"},
		"abandoned":             {func(e *evidence) { e.rows[3].status = "abandoned" }, "abandoned: row 3"},
		"unfinished":            {func(e *evidence) { e.rows[3].status = "failed" }, "unfinished: row 3"},
		"past a held one": {func(e *evidence) {
			e.rows[1].status, e.rows[1].held = "abandoned", true
		}, "disorder: row 3 stands behind a held one"},
		"stolen":                     {func(e *evidence) { e.thefts = []string{"partition 3"} }, "stolen"},
		"ended too early":            {func(e *evidence) { e.endings[0].by = sessions(42) }, "stolen: the membership of some-host-41-aa"},
		"ended while it stood still": {func(e *evidence) { e.incidents[0].Kind = "stop" }, "stolen: the membership of some-host-40-aa"},
		"duplicate without a reason": {func(e *evidence) {
			e.deliveries = append(e.deliveries, e.deliveries[0])
		}, "unexplained: message m0"},
		"duplicate too many": {func(e *evidence) {
			e.deliveries = append(e.deliveries, e.deliveries[6])
		}, "unexplained: message m5"},
		"duplicate after another one's kill":  {func(e *evidence) { e.incidents[0].PID = 41 }, "unexplained: message m5"},
		"duplicate long after a kill":         {func(e *evidence) { shift(e, -time.Hour) }, "unexplained: message m5"},
		"duplicate before anybody was killed": {func(e *evidence) { shift(e, time.Hour) }, "unexplained: message m5"},
	} {
		t.Run(name, func(t *testing.T) {
			e := sound()
			c.spoil(&e)
			require.Contains(t, strings.Join(e.judge().violations, "\n"), c.finds)
		})
	}

	// Whoever was answered pays.
	paying := sound()
	paying.steps[11].paid = true
	require.Equal(t, 1, paying.judge().paid)
	paying.incidents[0].Kind = "unanswered call"
	require.Zero(t, paying.judge().paid)

	allowed := sound()
	allowed.rows[3].status = "abandoned"
	allowed.deliveries = slices.Delete(allowed.deliveries, 3, 4)
	allowed.mayBeAbandoned = []string{"m3"}
	require.Empty(t, allowed.judge().violations)
}

func shift(e *evidence, by time.Duration) {
	for i := range e.incidents {
		e.incidents[i].From = e.incidents[i].From.Add(by)
		e.incidents[i].Until = e.incidents[i].Until.Add(by)
	}
}
