package dedup_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription/dedup"
)

// The explorer runs the handler in every order of events: two workers, two
// messages of one entity, two copies of each, a worker that dies between any two
// steps. It takes no goroutines: a worker is what its calls of the stores have
// returned so far, and is run from the beginning of Handle, with these, up to its
// next call. So a state can be copied, and one that was seen is not gone through
// again.

// rules are switches; each breaks one.
type rules struct {
	checkFirst  bool // asks for the id before it loads the entity
	removeFirst bool // takes the outgoing messages out before the id is added
	sendLast    bool // publishes after the id was added
	noCAS       bool // saves whatever the revision
	cachedNo    bool // remembers that an id was not there
}

// answer is what one call returned.
type answer struct {
	call  string
	value string
	has   bool
	err   error
}

// world is a state: stores, broker, queue and workers.
type world struct {
	document string
	revision int
	done     map[string]bool
	drawn    map[string]int             // Calls of Apply, by message.
	sent     map[string]map[string]bool // Bodies by id of the outgoing message.
	queue    map[string]int             // Copies that are to be delivered.
	workers  [2]worker
	crashes  int // Left.
}

type worker struct {
	id      string // "": idle
	answers []answer
	no      map[string]bool
}

func (w *world) clone() *world {
	c := *w
	c.done, c.drawn, c.queue = maps.Clone(w.done), maps.Clone(w.drawn), maps.Clone(w.queue)
	c.sent = map[string]map[string]bool{}
	for id, bodies := range w.sent {
		c.sent[id] = maps.Clone(bodies)
	}
	for i := range c.workers {
		c.workers[i].answers = slices.Clone(w.workers[i].answers)
		c.workers[i].no = maps.Clone(w.workers[i].no)
	}
	return &c
}

// String tells states apart. Which worker is which makes no difference.
func (w *world) String() string {
	var workers [2]string
	for i, me := range w.workers {
		var b strings.Builder
		b.WriteString(me.id)
		for _, a := range me.answers {
			b.WriteByte('|')
			b.WriteString(a.call)
			b.WriteString(a.value)
			b.WriteString(strconv.FormatBool(a.has))
			b.WriteString(strconv.FormatBool(a.err != nil))
		}
		b.WriteString(strconv.FormatBool(me.no["test/A"]) + strconv.FormatBool(me.no["test/B"]))
		workers[i] = b.String()
	}
	slices.Sort(workers[:])
	var b strings.Builder
	b.WriteString(w.document + " " + strconv.Itoa(w.revision) + " " + strconv.Itoa(w.crashes) + workers[0] + "&" + workers[1])
	for _, id := range []string{"A", "B"} {
		b.WriteString(strconv.FormatBool(w.done["test/"+id]) + strconv.Itoa(w.drawn[id]) + " " + strconv.Itoa(w.queue[id]))
		for _, body := range slices.Sorted(maps.Keys(w.sent["because of "+id])) {
			b.WriteString(body)
		}
	}
	return b.String()
}

var errCrash = errors.New("the process ends here")

// run is one worker's calls: those of the past are answered from memory, the next
// one happens, and the one after it ends the run.
type run struct {
	w     *world
	me    *worker
	rules rules
	at    int
	fresh bool
	later []func() // What a broken rule puts off.
}

// step makes a call, or answers from memory.
func (r *run) step(call string, do func() answer) answer {
	if r.at < len(r.me.answers) {
		a := r.me.answers[r.at]
		if a.call != call {
			panic(fmt.Sprintf("%s was %s before", call, a.call))
		}
		r.at++
		return a
	}
	if r.fresh {
		panic(errCrash)
	}
	r.fresh = true
	a := do()
	a.call = call
	r.me.answers = append(r.me.answers, a)
	r.at++
	return a
}

func (r *run) Get(context.Context, string) (value []byte, revision string, err error) {
	if r.rules.checkFirst {
		r.has()
	}
	a := r.step("get", func() answer {
		if r.w.revision == 0 {
			return answer{}
		}
		return answer{value: strconv.Itoa(r.w.revision) + " " + r.w.document}
	})
	if a.value == "" {
		return nil, "", nil
	}
	revision, document, _ := strings.Cut(a.value, " ")
	return []byte(document), revision, nil
}

func (r *run) Swap(_ context.Context, _ string, value []byte, revision string) (string, error) {
	if r.rules.removeFirst {
		defer r.addLate()
	}
	a := r.step("swap", func() answer {
		if now := strconv.Itoa(r.w.revision); revision != now && (revision != "" || now != "0") && !r.rules.noCAS {
			return answer{err: dedup.ErrConflict}
		}
		r.w.revision++
		r.w.document = string(value)
		return answer{value: strconv.Itoa(r.w.revision)}
	})
	return a.value, a.err
}

func (r *run) has() bool {
	id := "test/" + r.me.id
	return r.step("has", func() answer {
		if r.rules.cachedNo && r.me.no[id] {
			return answer{}
		}
		if r.rules.cachedNo && !r.w.done[id] {
			r.me.no[id] = true
		}
		return answer{has: r.w.done[id]}
	}).has
}

func (r *run) Has(context.Context, string) (bool, error) {
	if r.rules.checkFirst {
		return r.me.answers[0].has, nil // Asked by Get.
	}
	return r.has(), nil
}

func (r *run) Add(_ context.Context, id string) error {
	add := func() { r.step("add", func() answer { r.w.done[id] = true; return answer{} }) }
	if r.rules.removeFirst {
		r.later = append(r.later, add)
		return nil
	}
	add()
	for _, send := range r.later {
		send()
	}
	return nil
}

func (r *run) addLate() {
	for _, add := range r.later {
		add()
	}
	r.later = nil
}

func (r *run) Publish(_ context.Context, messages []broker.Message) error {
	for _, m := range messages {
		send := func() {
			r.step("publish "+m.ID, func() answer {
				if r.w.sent[m.ID] == nil {
					r.w.sent[m.ID] = map[string]bool{}
				}
				r.w.sent[m.ID][string(m.Body)] = true
				return answer{}
			})
		}
		if r.rules.sendLast {
			r.later = append(r.later, send)
			continue
		}
		send()
	}
	return nil
}

// ledger is the entity: which messages have changed it, in order.
type ledger struct{ Applied []string }

// apply gives each attempt another number, which it sends.
func (r *run) apply(_ context.Context, l *ledger, m broker.Message) ([]broker.Message, error) {
	if r.fresh { // Handle makes an error of a panic here.
		return nil, errCrash
	}
	drawn := r.step("apply", func() answer {
		r.w.drawn[m.ID]++
		return answer{value: fmt.Sprintf("%s, attempt %d", m.ID, r.w.drawn[m.ID])}
	}).value
	l.Applied = append(l.Applied, drawn)
	return []broker.Message{{ID: "because of " + m.ID, Topic: "out", Key: "k", Body: []byte(drawn)}}, nil
}

// advance lets a worker make its next call.
func (w *world) advance(i int, broken rules) error {
	me := &w.workers[i]
	r := &run{w: w, me: me, rules: broken}
	handler, err := dedup.New(dedup.Config[ledger]{
		Name: "test", Documents: r, Processed: r, Publisher: r, Attempts: 1, Apply: r.apply,
	})
	if err != nil {
		return err
	}
	ended, result := false, error(nil)
	func() {
		defer func() {
			if v := recover(); v != nil && v != errCrash { //nolint:errorlint // The very value.
				panic(v)
			}
		}()
		result = handler.Handle(context.Background(), broker.Message{ID: me.id, Topic: "in", Key: "entity"})
		ended = true
	}()
	if ended && !errors.Is(result, errCrash) {
		if result != nil {
			w.queue[me.id]++ // It returns to the queue.
		}
		me.id, me.answers = "", nil
	}
	return nil
}

// deliver gives an idle worker a copy of a message.
func (w *world) deliver(i int, id string) {
	w.queue[id]--
	w.workers[i].id = id
}

// crash ends a worker between two calls.
func (w *world) crash(i int) {
	w.crashes--
	w.queue[w.workers[i].id]++
	w.workers[i] = worker{no: map[string]bool{}}
}

type move struct {
	name string
	do   func(*world) error
}

// moves are all that can happen next.
func (w *world) moves(broken rules) (all []move) {
	for i, me := range w.workers {
		n := strconv.Itoa(i)
		if me.id != "" {
			all = append(all, move{n + " steps", func(w *world) error { return w.advance(i, broken) }})
			if w.crashes > 0 {
				all = append(all, move{n + " dies", func(w *world) error { w.crash(i); return nil }})
			}
			continue
		}
		for _, id := range []string{"A", "B"} {
			if w.queue[id] > 0 {
				all = append(all, move{n + " gets " + id, func(w *world) error { w.deliver(i, id); return nil }})
			}
		}
	}
	return all
}

// entity is what the document holds.
func (w *world) entity() (applied []string, outbox map[string][]struct{ Body []byte }) {
	if w.revision == 0 {
		return nil, nil
	}
	var d struct {
		State  ledger
		Outbox map[string][]struct{ Body []byte }
	}
	if err := json.Unmarshal([]byte(w.document), &d); err != nil {
		panic(err)
	}
	return d.State.Applied, d.Outbox
}

// check says which invariant a state breaks.
func (w *world) check(over bool) error {
	applied, outbox := w.entity()
	effects := map[string]string{}
	for _, a := range applied {
		id, _, _ := strings.Cut(a, ",")
		if effects[id] != "" {
			return fmt.Errorf("AtMostOneStateChange: %s has changed the entity twice: %q", id, applied)
		}
		effects[id] = a
	}
	for id := range w.drawn {
		if _, there := outbox["test/"+id]; effects[id] != "" && !there && !w.done["test/"+id] {
			return fmt.Errorf("S0-07: %s has changed the entity, and neither the entity nor the processed know", id)
		}
		if w.done["test/"+id] && len(w.sent["because of "+id]) == 0 {
			return fmt.Errorf("S0-09: %s is processed, and what it led to was not published", id)
		}
	}
	for id, bodies := range w.sent {
		if len(bodies) > 1 {
			return fmt.Errorf("AtMostOneOutputMsg: %s has bodies %q", id, slices.Sorted(maps.Keys(bodies)))
		}
		for body := range bodies {
			if effects[strings.TrimPrefix(id, "because of ")] != body {
				return fmt.Errorf("ConsistentStateAndOutput: published %q, the entity has %q", body, applied)
			}
		}
	}
	if !over {
		return nil
	}
	if len(effects) != 2 || len(outbox) != 0 || len(w.done) != 2 || len(w.sent) != 2 || w.queue["A"]+w.queue["B"] > 0 {
		return fmt.Errorf("Termination: it is over, and the entity has %q, its outbox %d, the processed %v, sent %v", applied, len(outbox), w.done, w.sent)
	}
	return nil
}

// explore goes through all states that w leads to, and returns how many they are
// and the first broken invariant, with the way there.
func explore(w *world, broken rules) (states int, err error) {
	const open, closed = 1, 2
	seen := map[[32]byte]int{}
	var path []string
	var visit func(w *world) error
	visit = func(w *world) error {
		name := sha256.Sum256([]byte(w.String()))
		switch seen[name] {
		case closed:
			return nil
		case open:
			return fmt.Errorf("Termination: it goes round in circles: %s", strings.Join(path, ", "))
		}
		seen[name] = open
		moves := w.moves(broken)
		if err := w.check(len(moves) == 0); err != nil {
			return fmt.Errorf("%w\nafter: %s", err, strings.Join(path, ", "))
		}
		for _, move := range moves {
			next := w.clone()
			if err := move.do(next); err != nil {
				return err
			}
			path = append(path, move.name)
			if err := visit(next); err != nil {
				return err
			}
			path = path[:len(path)-1]
		}
		seen[name] = closed
		return nil
	}
	err = visit(w)
	return len(seen), err
}

func begin(crashes int) *world {
	w := &world{
		done: map[string]bool{}, drawn: map[string]int{}, sent: map[string]map[string]bool{},
		queue: map[string]int{"A": 2, "B": 2}, crashes: crashes,
	}
	for i := range w.workers {
		w.workers[i].no = map[string]bool{}
	}
	return w
}

// All interleavings of two workers, two ids and two copies, with a crash at each
// step: the effect is there once, and so are the bodies of what it led to.
func TestExplore_S0_22_S0_07_S0_13_EveryInterleaving(t *testing.T) {
	states, err := explore(begin(1), rules{})
	require.NoError(t, err)
	t.Log(states, "states")
	require.Greater(t, states, 10_000)
}

// Each rule is broken once, and the invariant that it stands for notices.
func TestExplore_S0_11_S0_10_BrokenRules(t *testing.T) {
	for name, c := range map[string]struct {
		broken rules
		want   string
	}{
		"S0-11 the id is asked for before the entity is loaded": {rules{checkFirst: true}, "AtMostOneStateChange"},
		"S0-08 removed before the id was added":                 {rules{removeFirst: true}, "S0-07"},
		"S0-09 published after the id was added":                {rules{sendLast: true}, "S0-09"},
		"S0-12 saved whatever the revision":                     {rules{noCAS: true}, "ConsistentStateAndOutput"},
		"S0-15 a negative read is cached":                       {rules{cachedNo: true}, "AtMostOneStateChange"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := explore(begin(1), c.broken)
			require.ErrorContains(t, err, c.want)
			t.Log(err)
		})
	}
}
