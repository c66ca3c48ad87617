// Package verdict is the checker of histories: from what is left when the processes are
// gone, it decides whether anything was lost, invented, changed, put out of order, given up
// or repeated without a reason. The fault runs on real servers and the simulation both ask it.
package verdict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Evidence is what is left when the processes are gone.
type Evidence struct {
	Rows           []Row            // in the order of seq
	Steps          []Step           // in the order in which they happened
	Moves          map[string]int64 // by account: how many events its document has seen
	Deliveries     []Delivery       // in the order of each partition
	Incidents      []Incident
	Thefts         []string
	Endings        []Ending
	Ended          map[int]time.Time // by process: when it was gone, of those that nobody killed
	Stale          int               // rows of write-backs that engines said came too late
	TakenOver      int               // rows that engines said they took over
	MayBeAbandoned []string
	Moved          []string // ids of rows that an operator took away or brought back: their keys went on without them
}

// Row is an event as the outbox has it in the end.
type Row struct {
	Seq              int64
	ID, Key, Status  string
	Class            string
	Attempts, Losses int
	Held             bool // and so are those of its key behind it
	Body             []byte
}

// Step is a change of a row's status, as the database saw it.
type Step struct {
	Seq      int64
	At       time.Time
	Old, New string
	Owner    string // who has the row, or had it
	Member   int64
	Claim    int64 // of the member
	Lost     bool  // a takeover
	Paid     bool  // It cost an attempt.
}

// Delivery is a message as the broker has it.
type Delivery struct {
	Topic     string
	Life      int // of the topic: how often it was deleted before
	Partition int32
	Offset    int64
	At        time.Time // by the broker's clock; zero where nobody asks
	ID, Key   string
	Body      []byte
}

// Incident is what was done to a process, or with PID 0 to Kafka or to the database.
type Incident struct {
	Kind        string
	PID         int
	From, Until time.Time

	// Undoes says that the database may have lost its last transactions, at least those that
	// were not flushed: claims and settlements among them, and what their witness has seen.
	Undoes bool
}

// Report is the verdict. There must be no violations.
type Report struct {
	Events, Deliveries, Duplicates int
	Reasons                        map[string]int // of duplicates
	Incidents                      map[string]int
	Taken, Stale, TakenOver        int
	Paid                           int // attempts, besides those of unanswered calls
	Abandoned                      int
	Worst                          int // duplicates that one kill made
	Violations                     []string
}

func (r Report) String() string {
	return fmt.Sprintf("%d events, %d deliveries, %d duplicates (%s; at most %d by one kill), %s, %d rows taken over (%d of them reported), %d stale write-backs, %d attempts paid, %d abandoned",
		r.Events, r.Deliveries, r.Duplicates, counts(r.Reasons), r.Worst, counts(r.Incidents), r.Taken, r.TakenOver, r.Stale, r.Paid, r.Abandoned)
}

// Odd is how many duplicates there are besides those of a Kafka that was too busy
// to answer in time, for tests that expect none.
func (r Report) Odd() int { return r.Duplicates - r.Reasons["unanswered call"] }

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

// Judge is what it comes to.
func (e Evidence) Judge() Report {
	j := judging{
		Evidence: e,
		r: Report{
			Events: len(e.Rows), Deliveries: len(e.Deliveries), Reasons: map[string]int{}, Incidents: map[string]int{},
			Stale: e.Stale, TakenOver: e.TakenOver,
		},
		times: map[string]int{}, first: map[string][]Row{}, left: map[string]bool{},
	}
	for _, theft := range e.Thefts {
		j.violation("stolen: %s", theft)
	}
	for _, g := range e.Endings {
		if g.stolen(e.Incidents) && !e.gone(g) {
			j.violation("stolen: the membership of %s was ended %s before its lease by %s", g.Name, g.Early, g.By)
		}
	}
	for _, i := range e.Incidents {
		j.r.Incidents[i.Kind+"s"]++
	}
	j.deliveries()
	j.keys()
	j.accounts()
	e.explain(&j.r, j.times, e.sentBeforeCrashes(), j.violation)
	return j.r
}

type judging struct {
	Evidence
	r     Report
	times map[string]int   // how often each message was delivered, by id
	first map[string][]Row // of each key, in the order in which they came first
	left  map[string]bool  // keys that may have gone on without a row
}

func (j *judging) violation(format string, args ...any) {
	j.r.Violations = append(j.r.Violations, fmt.Sprintf(format, args...))
}

// deliveries looks at what Kafka has: each partition's order is its own, and a key is in
// one of them.
func (j *judging) deliveries() {
	byID := map[string]Row{}
	for _, row := range j.Rows {
		byID[row.ID] = row
	}
	home := map[string]string{}
	for _, d := range j.Deliveries {
		row, known := byID[d.ID]
		if !known {
			j.violation("ghost: %s, partition %d, offset %d has message %s, which was never committed", d.Topic, d.Partition, d.Offset, d.ID)
			continue
		}
		if d.Key != row.Key || !bytes.Equal(d.Body, row.Body) {
			j.violation("changed: message %s of row %d is not what the row has", d.ID, row.Seq)
		}
		place, key := fmt.Sprintf("%s, partition %d", d.Topic, d.Partition), fmt.Sprintf("%s %d", d.Key, d.Life)
		if at, ok := home[key]; ok && at != place {
			j.violation("disorder: key %s is in %s and in %s", d.Key, at, place)
		}
		home[key] = place
		if j.times[d.ID]++; j.times[d.ID] == 1 && !j.passed(row) {
			if before := j.first[d.Key]; len(before) > 0 && before[len(before)-1].Seq > row.Seq {
				j.violation("disorder: key %s: row %d came first after row %d", d.Key, row.Seq, before[len(before)-1].Seq)
			}
			j.first[d.Key] = append(j.first[d.Key], row)
		}
	}
}

// keys looks at what the outbox says became of each row. Of keys that wait an operator has
// held a row, when others behind it had been tried.
func (j *judging) keys() {
	held, waits, heads := map[string]bool{}, map[string]bool{}, map[string]Row{}
	for _, row := range j.Rows {
		if j.passed(row) {
			j.left[row.Key] = true
		}
		switch {
		case waits[row.Key], held[row.Key] && slices.Contains(j.Moved, row.ID):
		case held[row.Key]:
			if row.Status != "pending" || j.times[row.ID] > 0 && !j.waitsStored(row, heads[row.Key]) {
				j.violation("disorder: row %d stands behind a held one, and is %s and %d times in Kafka", row.Seq, row.Status, j.times[row.ID])
			}
		case row.Status == "abandoned":
			j.r.Abandoned++
			moved := slices.Contains(j.Moved, row.ID)
			held[row.Key], waits[row.Key], heads[row.Key] = row.Held && !moved, row.Held && moved, row
			if !slices.Contains(j.MayBeAbandoned, row.ID) {
				j.violation("abandoned: row %d, class %q, attempts %d, losses %d", row.Seq, row.Class, row.Attempts, row.Losses)
			}
		case row.Status != "published":
			j.violation("unfinished: row %d is %s", row.Seq, row.Status)
		case j.times[row.ID] == 0:
			j.violation("lost: row %d is published, and message %s is not in Kafka", row.Seq, row.ID)
		}
	}
}

// accounts looks at the same without the outbox: an account that has seen n events has
// told of 1 to n.
func (j *judging) accounts() {
	next := map[string]int64{}
	for key, rows := range j.first {
		for _, row := range rows {
			next[key]++
			if n := Number(row.Body); n != next[key] && !j.left[key] {
				j.violation("disorder: key %s: event %d came first where %d should", key, n, next[key])
			}
		}
	}
	for id, n := range j.Moves {
		if next[id] != n && !j.left[id] {
			j.violation("lost: account %s has seen %d events and %d were published", id, n, next[id])
		}
	}
}

// passed says that the key of a row may have gone on without it: a copy of it may come late.
func (e Evidence) passed(r Row) bool {
	return r.Status == "abandoned" || slices.Contains(e.Moved, r.ID)
}

// explain finds for every delivery but the first a claim of its row that did not
// end in published, and a fault that befell its owner while it had the row.
func (e Evidence) explain(r *Report, times map[string]int, undone map[string][]int, violation func(string, ...any)) {
	open := map[token]Step{}
	ended := map[int64][]claim{} // by Seq: the claims that did not end in published
	for _, s := range e.Steps {
		switch {
		case s.New == "processing":
			open[s.token()] = s
		case s.Old == "processing":
			if s.Lost {
				r.Taken++
			}
			c := claim{open[s.token()], s}
			if s.New != "published" {
				ended[s.Seq] = append(ended[s.Seq], c)
			}
			if s.Paid && e.happened(c, "unanswered call") < 0 {
				r.Paid++
			}
		}
	}
	by := map[int]int{} // kill
	for _, row := range e.Rows {
		extra := times[row.ID] - 1
		if extra <= 0 {
			continue
		}
		r.Duplicates += extra
		for _, c := range ended[row.Seq] {
			if extra == 0 {
				break
			}
			if i := e.happened(c, ""); i >= 0 {
				r.Reasons[e.Incidents[i].Kind]++
				// Not of what was in hand no more: a call that had gone unanswered may be as near.
				if e.Incidents[i].Kind == "kill" && !c.end.At.Before(e.Incidents[i].From) {
					by[i]++
					r.Worst = max(r.Worst, by[i])
				}
				extra--
			}
		}
		for _, i := range undone[row.ID][:min(extra, len(undone[row.ID]))] {
			r.Reasons[e.Incidents[i].Kind]++
			extra--
		}
		if extra > 0 {
			violation("unexplained: message %s of row %d is %d times in Kafka, and nothing happened to %d of its claims", row.ID, row.Seq, times[row.ID], extra)
		}
	}
}

// unflushed is how long before a crash of the database a transaction may have ended that the
// crash undoes: three times wal_writer_delay, which is 200 ms by default, and what two clocks
// and a busy machine add.
const unflushed = 5 * time.Second

// sentBeforeCrashes are, by id, the crashes of the database before which the broker got a copy
// so short that nothing there may know of its claim.
func (e Evidence) sentBeforeCrashes() map[string][]int {
	undone := map[string][]int{}
	for _, d := range e.Deliveries {
		i := slices.IndexFunc(e.Incidents, func(i Incident) bool {
			return i.Undoes && d.At.After(i.From.Add(-unflushed)) && d.At.Before(i.Until.Add(slack))
		})
		if i >= 0 {
			undone[d.ID] = append(undone[d.ID], i)
		}
	}
	return undone
}

// pidOf reads a member's Name: host, process, unique part.
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

// Ending is a membership that somebody ended before its lease was over.
type Ending struct {
	At    time.Time
	Name  string // whose
	By    string // the session's name
	Early string
}

// stolen says that it was neither its process that ended it, nor was this dead.
func (e Ending) stolen(incidents []Incident) bool {
	pid := pidOf(e.Name)
	if e.By == Session(pid) {
		return false
	}
	for _, i := range incidents {
		if i.Kind == "kill" && i.PID == pid && !i.From.After(e.At.Add(slack)) {
			return false
		}
	}
	return true
}

// gone says that its process had ended by itself.
func (e Evidence) gone(g Ending) bool {
	at, ok := e.Ended[pidOf(g.Name)]
	return ok && !at.After(g.At.Add(slack))
}

// Session is the name of a node's sessions.
func Session(pid int) string { return "node-" + strconv.Itoa(pid) }

// Number is the number in an event's body.
func Number(body []byte) int64 {
	var m struct{ Data struct{ Number int64 } }
	_ = json.Unmarshal(body, &m) // 0 is no number
	return m.Data.Number
}
