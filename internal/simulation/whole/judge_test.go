package whole

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
)

const isOpen = "status IN ('parked', 'held', 'waiting', 'replay', 'early')"

// ask reads what is committed, for the judge alone.
func (w *world) read(text string) [][]any {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, err := query(w.db.reader, text)
	if err != nil {
		panic(fmt.Errorf("%s: %w", text, err))
	}
	all := make([][]any, len(found.rows))
	for i, row := range found.rows {
		for _, v := range row {
			all[i] = append(all[i], v)
		}
	}
	return all
}

func (w *world) number(text string) int64 { return w.read(text)[0][0].(int64) }

// finished says that nothing is left to do.
func (w *world) finished() bool { return w.left() == "" }

// left says what is.
func (w *world) left() string {
	w.mu.Lock()
	lag, running := 0, 0
	for _, g := range w.groups() {
		lag += g.lag()
	}
	for _, r := range w.requests {
		if !r.ghost && (r.kind == "in" || r.kind == "begin" || r.kind == "commit") {
			running++
		}
	}
	w.mu.Unlock()
	queued := w.number("SELECT count(*) FROM outbox_queue")
	letters := w.number("SELECT count(*) FROM dead_letters WHERE " + isOpen)
	timers := w.number(waitingTimers)
	if lag == 0 && running == 0 && queued == 0 && letters == 0 && timers == 0 {
		return ""
	}
	return fmt.Sprintf("%d rows are queued, %d messages not acknowledged, %d letters open, %d timers not handled, %d statements wait: %v", queued, lag, letters, timers, running,
		w.read("SELECT message_id, key_id, status, attempts, crashes, reason, error FROM dead_letters WHERE "+isOpen))
}

// parked says that an operator has something to do.
func (w *world) parked() bool {
	return w.number("SELECT count(*) FROM dead_letters WHERE status = 'parked'") > 0
}

// acknowledged sees that a message is: by then it has taken effect, or stands in the table.
func (w *world) acknowledged(m broker.Message) {
	if w.settled[m.ID] {
		return
	}
	w.settled[m.ID] = true
	found, err := query(w.db.reader, "SELECT (SELECT count(*) FROM effects WHERE message_id = '"+m.ID+"') + (SELECT count(*) FROM dead_letters WHERE message_id = '"+m.ID+"')")
	if err != nil {
		panic(err)
	}
	if found.rows[0][0].(int64) == 0 {
		w.wrong("lost: %s of %s is acknowledged, and has no effect", m.ID, m.Key)
	}
}

// effect is one that is stored.
type effect struct {
	message string
	number  int64
}

// judge looks at what is left when nothing runs any more.
func (w *world) judge() {
	accounts := map[string]*Account{}
	for _, row := range w.read("SELECT id, state FROM documents WHERE version > 0 AND category = '" + category + "'") {
		var state struct {
			N   int64
			Ops []string
		}
		if err := json.Unmarshal(text(row[1]), &state); err != nil {
			panic(err)
		}
		accounts[row[0].(string)] = &Account{N: state.N, Ops: state.Ops}
	}
	w.judgeUnits(accounts)
	w.judgeBroker(accounts)
	w.judgeEffects(accounts)
	w.judgeAlarms()
	w.judgeJourneys()
	// Who was up before the first death doesn't know of it before its next beat.
	if w.deaths > maxAttempts+w.begun {
		w.wrong("poison: it killed %d processes, of %d", w.deaths, w.begun)
	}
}

func text(v any) []byte {
	if s, ok := v.(string); ok {
		return []byte(s)
	}
	return v.([]byte)
}

// judgeUnits: what a caller was told is so.
func (w *world) judgeUnits(accounts map[string]*Account) {
	for id, o := range w.ops {
		n := 0
		for _, name := range o.accounts {
			if a := accounts[name]; a != nil {
				for _, done := range a.Ops {
					if done == id {
						n++
					}
				}
			}
		}
		o.there = n > 0
		switch {
		case n != 0 && n != len(o.accounts):
			w.wrong("torn: unit %s changed %d of its %d accounts", id, n, len(o.accounts))
		case n == 0 && o.fate == done && len(o.accounts) > 0:
			w.wrong("lost: unit %s was committed, and nothing is left of it", id)
		case n > 0 && (o.fate == undone || o.rolls):
			w.wrong("ghost: unit %s was not committed, and has changed its accounts", id)
		}
	}
	for name, a := range accounts {
		if int64(len(a.Ops)) != a.N {
			w.wrong("torn: %s was changed %d times by %d units", name, a.N, len(a.Ops))
		}
	}
}

// judgeBroker: all that was committed is there, in order, and nothing else.
func (w *world) judgeBroker(accounts map[string]*Account) {
	first := map[string][]int64{}
	ids := map[string]string{}
	for part := range parts {
		for _, s := range w.group.log[part] {
			e := moved(s.Body)
			name := fmt.Sprint(e.Account, " ", e.Number)
			switch id, known := ids[name]; {
			case known && id == s.ID && w.plan.exact:
				w.wrong("double: %s reached the broker twice, in transactions", name)
			case known && id != s.ID:
				w.wrong("ghost: %s has two messages, %s and %s", name, id, s.ID)
			case !known:
				ids[name] = s.ID
				first[e.Account] = append(first[e.Account], e.Number)
			}
		}
	}
	for name, numbers := range first {
		if !slices.IsSorted(numbers) {
			w.wrong("disorder: %s reached the broker as %v", name, numbers)
		}
		if a := accounts[name]; a == nil || numbers[len(numbers)-1] > a.N {
			w.wrong("ghost: %s is in the broker with %v, and not in the database", name, numbers)
		}
	}
	for name, a := range accounts {
		if int64(len(first[name])) != a.N {
			w.wrong("lost: %s has %d events, and the broker %v", name, a.N, first[name])
		}
	}
}

// moved is an event as it travels.
func moved(body []byte) Moved {
	var envelope struct{ Data Moved }
	if err := json.Unmarshal(body, &envelope); err != nil {
		panic(err)
	}
	return envelope.Data
}

// judgeEffects: each message once, in order per key unless one of it was parked and skipped.
func (w *world) judgeEffects(accounts map[string]*Account) {
	given, loose := map[string]bool{}, map[string]bool{}
	for _, row := range w.read("SELECT message_id, status, partition_key FROM dead_letters") {
		id := row[0].(string)
		given[id] = row[1] == "discarded"
		loose[row[2].(string)] = w.plan.policy == subscription.Skip
	}
	effects, seen := map[string][]effect{}, map[string]int{}
	for _, row := range w.read("SELECT message_id, account, number FROM effects ORDER BY n") {
		e := effect{row[0].(string), row[2].(int64)}
		effects[row[1].(string)] = append(effects[row[1].(string)], e)
		seen[e.message]++
	}
	for id, n := range seen {
		if n > 1 {
			w.wrong("twice: %s took effect %d times", id, n)
		}
		if given[id] {
			w.wrong("ghost: %s was given up, and took effect", id)
		}
	}
	for name, all := range effects {
		in := slices.IsSortedFunc(all, func(a, b effect) int { return int(a.number - b.number) })
		if !in && !loose[name] {
			w.wrong("disorder: %s took effect as %v", name, all)
		}
	}
	for part := range parts {
		for _, s := range w.group.log[part] {
			if seen[s.ID] == 0 && !given[s.ID] {
				w.wrong("lost: %s of %s has no effect", s.ID, s.Key)
			}
		}
	}
	if n := w.number("SELECT COALESCE((SELECT json_extract(state, '$.N') FROM documents WHERE category = 'bank::tally'), 0)"); w.plan.tally && n != int64(len(seen)) {
		w.wrong("torn: the tally is %d, with %d effects", n, len(seen))
	}
}
