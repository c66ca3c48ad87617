package whole

import (
	"encoding/json"
	"slices"
)

// journeyEnd is what a journey that ended so has sent, behind its booking.
var journeyEnd = map[string]string{"paid": "ship", "late": "cancel", "refused": "cancel"}

// judgeJourneys: each that was begun comes to one end, which is due to it, and each of its
// commands is done once.
func (w *world) judgeJourneys() {
	if !w.plan.journeys {
		return
	}
	paid := map[string]bool{}
	for _, row := range w.read("SELECT id FROM documents WHERE version > 0 AND category = 'bank::bill'") {
		paid[row[0].(string)] = true
	}
	done := map[string][]string{}
	for _, row := range w.read("SELECT id, state FROM documents WHERE version > 0 AND category = 'bank::trip'") {
		var t struct{ Log []string }
		if err := json.Unmarshal(text(row[1]), &t); err != nil {
			panic(err)
		}
		done[row[0].(string)] = t.Log
	}
	seen := map[string]bool{}
	for _, row := range w.read("SELECT id, status, COALESCE(state, 'null') FROM processes WHERE process = '" + journeyName + "'") {
		id := row[0].(string)
		var j struct{ Log []step }
		if err := json.Unmarshal(text(row[2]), &j); err != nil {
			panic(err)
		}
		if seen[id] = true; row[1] != "ended" {
			w.wrong("unfinished: the journey of %s is %v, and has heard %v", id, row[1], j.Log)
			continue
		}
		w.judgeJourney(id, j.Log, done, paid[id])
	}
	for id := range done {
		if !seen[id] {
			w.wrong("lost: %s was begun, and has no journey", id)
		}
	}
	w.judgeTravel(done, paid)
}

func (w *world) judgeJourney(id string, log []step, done map[string][]string, paid bool) {
	carried, begun := done[id]
	switch {
	case !begun:
		w.wrong("ghost: %s wasn't begun, and has a journey", id)
		return
	case len(log) != 2 || log[0].What != "begun" || journeyEnd[log[1].What] == "":
		w.wrong("torn: the journey of %s has heard %v", id, log)
		return
	}
	end := log[1]
	switch {
	case end.What == "paid" && !paid:
		w.wrong("ghost: the journey of %s has heard of a payment", id)
	case end.What == "refused" && !noBooking(id):
		w.wrong("ghost: the journey of %s has heard of a refusal", id)
	case end.What == "late" && end.Now.Before(log[0].At):
		w.wrong("early: the journey of %s was late %v before its time", id, log[0].At.Sub(end.Now))
	}
	want := []string{"book", journeyEnd[end.What]}
	if noBooking(id) {
		want = want[1:]
	}
	// Under Skip, what is parked is done behind the others.
	if w.plan.poison != "" {
		carried, want = slices.Sorted(slices.Values(carried)), slices.Sorted(slices.Values(want))
	}
	if !slices.Equal(carried, want) {
		w.wrong("%s: the journey of %s has heard %v, and its commands did %v", short(carried, want), id, log, carried)
	}
	w.journeys[end.What]++
}

// short names what is wrong with commands.
func short(got, want []string) string {
	switch {
	case len(got) > len(want):
		return "twice"
	case len(got) < len(want):
		return "lost"
	}
	return "disorder"
}

// judgeTravel: what the units' callers were told is so.
func (w *world) judgeTravel(begun map[string][]string, paid map[string]bool) {
	for id, o := range w.ops {
		c := o.change
		if c.what != "begin" && c.what != "pay" {
			continue
		}
		_, there := begun[c.alarm]
		if c.what == "pay" {
			there = paid[c.alarm]
		}
		switch {
		case !there && o.fate == done:
			w.wrong("lost: unit %s was committed, and %s has nothing of it", id, c.alarm)
		case there && c.what == "begin" && (o.fate == undone || o.rolls):
			w.wrong("ghost: unit %s was not committed, and has begun %s", id, c.alarm)
		case c.what == "begin" && len(o.accounts) > 0 && there != o.there:
			w.wrong("torn: unit %s has begun %s: %v, and its accounts: %v", id, c.alarm, there, o.there)
		case there && c.what == "begin" && c.pays && !paid[c.alarm]:
			w.wrong("torn: unit %s has begun %s, and has not paid", id, c.alarm)
		}
	}
	for name := range paid {
		if _, there := begun[name]; !there {
			w.wrong("ghost: %s is paid, and was not begun", name)
		}
	}
}
