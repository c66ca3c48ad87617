package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sound is the evidence of a run in which one row was published twice because its
// engine was killed.
func sound() Evidence {
	var e Evidence
	at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	e.Moves = map[string]int64{"account-1": 3, "account-2": 3}
	for seq := range int64(6) {
		key := "account-" + strconv.FormatInt(seq%2+1, 10)
		id := fmt.Sprintf("m%d", seq)
		body := fmt.Appendf(nil, `{"data":{"number":%d}}`, seq/2+1)
		e.Rows = append(e.Rows, Row{Seq: seq, ID: id, Key: key, Status: "published", Attempts: 1, Body: body})
		d := Delivery{Topic: "t", Partition: int32(seq % 2), Offset: seq / 2, ID: id, Key: key, Body: body}
		e.Deliveries = append(e.Deliveries, d)
		e.Steps = append(e.Steps,
			Step{Seq: seq, At: at, Old: "pending", New: "processing", Owner: "some-host-41-aa", Claim: 1},
			Step{Seq: seq, At: at.Add(time.Second), Old: "processing", New: "published", Owner: "some-host-41-aa", Claim: 1})
	}
	again := e.Deliveries[5]
	again.Offset++
	e.Deliveries = append(e.Deliveries, again)
	e.Steps = slices.Insert(e.Steps, 10,
		Step{Seq: 5, At: at.Add(-time.Minute), Old: "pending", New: "processing", Owner: "some-host-40-aa", Claim: 0},
		Step{Seq: 5, At: at.Add(-time.Second), Old: "processing", New: "pending", Owner: "some-host-40-aa", Claim: 0, Lost: true})
	kill := at.Add(-30 * time.Second)
	e.Incidents = []Incident{{Kind: "kill", PID: 40, From: kill, Until: kill}}
	e.Endings = []Ending{{kill, "some-host-41-aa", Session(41), ""}, {kill, "some-host-40-aa", Session(41), ""}}
	return e
}

// C-91, C-92, C-93, C-94, C-95, C-96: the checker finds what is wrong, each kind of
// it, and nothing in what is sound.
func TestChecker_CanFail(t *testing.T) {
	r := sound().Judge()
	require.Empty(t, r.Violations)
	require.Equal(t, 6, r.Events)
	require.Equal(t, 7, r.Deliveries)
	require.Equal(t, 1, r.Duplicates)
	require.Equal(t, map[string]int{"kill": 1}, r.Reasons)
	require.Equal(t, 1, r.Worst)
	require.Equal(t, 1, r.Taken)

	// What was in hand no more when the kill came isn't of the kill alone.
	near := sound()
	near.Incidents[0].From = near.Steps[11].At.Add(slack / 2)
	near.Incidents[0].Until = near.Incidents[0].From
	r = near.Judge()
	require.Equal(t, map[string]int{"kill": 1}, r.Reasons)
	require.Zero(t, r.Worst)

	for name, c := range map[string]struct {
		spoil func(e *Evidence)
		finds string
	}{
		"lost in Kafka": {func(e *Evidence) { e.Deliveries = slices.Delete(e.Deliveries, 4, 5) }, "lost: row 4"},
		"lost in the outbox": {func(e *Evidence) {
			e.Rows = slices.Delete(e.Rows, 4, 5)
			e.Deliveries = slices.Delete(e.Deliveries, 4, 5)
		}, "lost: account account-1"},
		"ghost": {func(e *Evidence) {
			e.Deliveries = append(e.Deliveries, Delivery{Topic: "t", ID: "m9", Key: "account-1"})
		}, "ghost"},
		"swapped pair": {func(e *Evidence) {
			e.Deliveries[0], e.Deliveries[2] = e.Deliveries[2], e.Deliveries[0]
		}, "disorder: key account-1: row 0 came first after row 2"},
		"rows in another order than the state": {func(e *Evidence) {
			a, b := &e.Rows[0], &e.Rows[2]
			a.Body, b.Body = b.Body, a.Body
			e.Deliveries[0].Body, e.Deliveries[2].Body = a.Body, b.Body
		}, "disorder: key account-1: event 2 came first where 1 should"},
		"key in two partitions": {func(e *Evidence) { e.Deliveries[4].Partition = 1 }, "disorder: key account-1 is in"},
		"changed":               {func(e *Evidence) { e.Deliveries[0].Body = []byte("{}") }, "changed: message m0"},
		"another key":           {func(e *Evidence) { e.Deliveries[0].Key = "account-2" }, "changed: message m0"},
		"abandoned":             {func(e *Evidence) { e.Rows[3].Status = "abandoned" }, "abandoned: row 3"},
		"unfinished":            {func(e *Evidence) { e.Rows[3].Status = "failed" }, "unfinished: row 3"},
		"past a held one": {func(e *Evidence) {
			e.Rows[1].Status, e.Rows[1].Held = "abandoned", true
		}, "disorder: row 3 stands behind a held one"},
		"stolen":                     {func(e *Evidence) { e.Thefts = []string{"partition 3"} }, "stolen"},
		"ended too early":            {func(e *Evidence) { e.Endings[0].By = Session(42) }, "stolen: the membership of some-host-41-aa"},
		"ended while it stood still": {func(e *Evidence) { e.Incidents[0].Kind = "stop" }, "stolen: the membership of some-host-40-aa"},
		"duplicate without a reason": {func(e *Evidence) {
			e.Deliveries = append(e.Deliveries, e.Deliveries[0])
		}, "unexplained: message m0"},
		"duplicate too many": {func(e *Evidence) {
			e.Deliveries = append(e.Deliveries, e.Deliveries[6])
		}, "unexplained: message m5"},
		"duplicate after another one's kill":  {func(e *Evidence) { e.Incidents[0].PID = 41 }, "unexplained: message m5"},
		"duplicate long after a kill":         {func(e *Evidence) { shift(e, -time.Hour) }, "unexplained: message m5"},
		"duplicate before anybody was killed": {func(e *Evidence) { shift(e, time.Hour) }, "unexplained: message m5"},
	} {
		t.Run(name, func(t *testing.T) {
			e := sound()
			c.spoil(&e)
			require.Contains(t, strings.Join(e.Judge().Violations, "\n"), c.finds)
		})
	}

	// Whoever was answered pays.
	paying := sound()
	paying.Steps[11].Paid = true
	require.Equal(t, 1, paying.Judge().Paid)
	paying.Incidents[0].Kind = "unanswered call"
	require.Zero(t, paying.Judge().Paid)

	allowed := sound()
	allowed.Rows[3].Status = "abandoned"
	allowed.Deliveries = slices.Delete(allowed.Deliveries, 3, 4)
	allowed.MayBeAbandoned = []string{"m3"}
	require.Empty(t, allowed.Judge().Violations)
}

// held is the evidence of a run with one key of two rows: a member that stood still had sent
// both, and the next one, which sent the first again, was told that it is too large.
func held() Evidence {
	at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	e := Evidence{Moves: map[string]int64{"k": 2}, MayBeAbandoned: []string{"m1"}}
	for seq := int64(1); seq <= 2; seq++ {
		id, body := fmt.Sprintf("m%d", seq), fmt.Appendf(nil, `{"data":{"number":%d}}`, seq)
		e.Rows = append(e.Rows, Row{Seq: seq, ID: id, Key: "k", Status: "pending", Body: body})
		e.Deliveries = append(e.Deliveries, Delivery{Topic: "t", Offset: seq, ID: id, Key: "k", Body: body})
	}
	e.Rows[0].Status, e.Rows[0].Held = "abandoned", true
	for claim, ends := range [][2]string{{"pending", "pending"}, {"abandoned", "pending"}} {
		begin, owner := at.Add(time.Duration(claim)*time.Minute), fmt.Sprintf("some-host-4%d-aa", claim)
		for i := range ends {
			e.Steps = append(e.Steps, Step{Seq: int64(i + 1), At: begin, Old: "pending", New: "processing", Owner: owner, Member: int64(claim + 1), Claim: 1})
		}
		for i, end := range ends {
			e.Steps = append(e.Steps, Step{Seq: int64(i + 1), At: begin.Add(30 * time.Second), Old: "processing", New: end, Owner: owner, Member: int64(claim + 1), Claim: 1, Lost: claim == 0})
		}
	}
	e.Incidents = []Incident{{Kind: "stop", PID: 40, From: at.Add(time.Second), Until: at.Add(time.Minute)}}
	return e
}

// A row that the broker has may wait behind a held one only if both were sent by a member to
// which something happened, and it was not claimed again when the first one was held.
func TestChecker_AStoredRowWaitsBehindAHeldOne(t *testing.T) {
	require.Empty(t, held().Judge().Violations)
	again := Step{Seq: 2, At: held().Steps[7].At, Old: "pending", New: "processing", Owner: "some-host-40-aa", Member: 3, Claim: 1}
	for name, spoil := range map[string]func(e *Evidence){
		"published": func(e *Evidence) { e.Rows[1].Status = "published" },
		"failed":    func(e *Evidence) { e.Rows[1].Status = "failed" },
		"it was stored first": func(e *Evidence) {
			slices.Reverse(e.Deliveries)
		},
		"the held one was never stored":     func(e *Evidence) { e.Deliveries = e.Deliveries[1:] },
		"nothing happened to its member":    func(e *Evidence) { e.Incidents = nil },
		"it happened to the one that holds": func(e *Evidence) { e.Incidents[0].PID = 41; e.Incidents[0].Until = again.At },
		"more copies than lost claims": func(e *Evidence) {
			e.Deliveries = append(e.Deliveries, e.Deliveries[1])
		},
		"it was claimed behind the held one": func(e *Evidence) { e.Steps = append(e.Steps, again) },
		"nobody held it":                     func(e *Evidence) { e.Steps = slices.Delete(e.Steps, 6, 7) },
	} {
		t.Run(name, func(t *testing.T) {
			e := held()
			spoil(&e)
			require.Contains(t, strings.Join(e.Judge().Violations, "\n"), "disorder: row 2 stands behind a held one")
		})
	}
}

func shift(e *Evidence, by time.Duration) {
	for i := range e.Incidents {
		e.Incidents[i].From = e.Incidents[i].From.Add(by)
		e.Incidents[i].Until = e.Incidents[i].Until.Add(by)
	}
}
