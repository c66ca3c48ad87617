package whole

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/subscription"
)

// verb is what an act does.
type verb uint8

const (
	// To a request.
	answer verb = iota // it happens, and is answered
	refuse             // it doesn't happen
	busy               // nor now
	lose               // it happens, and nobody hears of it
	half               // half of it does
	linger             // nobody hears of it, and it may still happen
	late               // one that nobody waits for happens
	drop               // or never does
	// To processes, and to all.
	start
	kill
	stop
	pass  // time, by milliseconds
	away  // the database, or with 1 the broker, refuses
	back  // or is there again
	share // the group divides the topic anew
	expel // a member is taken for dead
	hang  // nothing of a process is answered
	thaw  // and now it is again
	// Of units of work and operators.
	unit
	replay
	discard
)

var verbs = [...]string{
	"answer", "refuse", "busy", "lose", "half", "linger", "late", "drop", "start", "kill", "stop", "pass", "away", "back", "share", "expel", "hang", "thaw", "unit", "replay", "discard",
}

// act is one thing that happens in a schedule.
type act struct {
	verb verb
	proc int
	kind string
	n    int
}

func (a act) String() string {
	text := verbs[a.verb]
	if a.proc != 0 {
		text += fmt.Sprintf(" process %d", a.proc)
	}
	if a.kind != "" {
		text += " " + a.kind
	}
	return fmt.Sprintf("%s %d", text, a.n)
}

func lines(acts []act) string {
	var text strings.Builder
	for _, a := range acts {
		fmt.Fprintln(&text, a)
	}
	return text.String()
}

// do is an act of the schedule. One that can't happen now is left out.
func (w *world) do(a act) bool {
	if !w.act(a) {
		return false
	}
	w.acts = append(w.acts, a)
	w.quiet()
	return true
}

// act has something happen; false if it can't.
func (w *world) act(a act) bool {
	switch a.verb {
	case answer, refuse, busy, lose, half, linger, late, drop:
		return w.onRequest(a)
	case start:
		w.say("%v", a)
		w.start()
	case kill, stop, unit, replay, discard, hang, thaw:
		return w.onProcess(a)
	case pass:
		w.say("%v", a)
		time.Sleep(time.Duration(a.n) * time.Millisecond) //nolint:forbidigo // in a bubble
		if a.n > 1000 {
			w.bury()
		}
	default:
		return w.outside(a)
	}
	return true
}

func (w *world) onRequest(a act) bool {
	for _, r := range w.waiting(a.verb == late || a.verb == drop) {
		if r.p.number == a.proc && r.kind == a.kind && r.n == a.n && r.can(a.verb) {
			w.say("%v: %s", a, r.what)
			w.answer(r, a.verb)
			return true
		}
	}
	return false
}

func (w *world) onProcess(a act) bool {
	for _, p := range w.alive() {
		if p.number != a.proc {
			continue
		}
		w.say("%v", a)
		switch a.verb {
		case kill:
			w.crash(p)
		case stop:
			p.stop()
		case unit:
			w.unit(p, a.n)
		case hang, thaw:
			w.mu.Lock()
			p.hangs = a.verb == hang
			w.mu.Unlock()
		default:
			w.operate(p, a.verb)
		}
		return true
	}
	return false
}

// operate replays what is parked, or gives it up.
func (w *world) operate(p *process, v verb) {
	w.operators.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, 5*time.Second)
		defer cancel()
		letters := subscription.NewDeadLetters(p.provider)
		subscriptions := []string{"effects"}
		if w.plan.timers {
			subscriptions = append(subscriptions, commandGroup)
		}
		if w.plan.journeys {
			v = replay // a journey without one of its messages has no end
			subscriptions = append(subscriptions, journeyName)
		}
		var errs []error
		for _, name := range subscriptions {
			var err error
			filter := subscription.DeadLetterFilter{Subscription: name}
			if v == replay {
				_, err = letters.Replay(ctx, filter, subscription.ReplayOptions{Actor: "simulation"})
			} else {
				_, err = letters.Discard(ctx, filter, subscription.DiscardOptions{Actor: "simulation"})
			}
			errs = append(errs, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.say("%s: %v", verbs[v], errors.Join(errs...))
	})
}

// ofOthers is what the number of an act has more for each group that it passes over.
const ofOthers = 100

// outside is what happens to the database, the broker and the group.
func (w *world) outside(a act) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	g, n := w.groups()[a.n/ofOthers], a.n%ofOthers
	switch {
	case a.verb == away || a.verb == back:
		w.away[a.n] = a.verb == away
	case len(g.members) == 0:
		return false
	case a.verb == share:
		g.share(n)
	case a.verb == expel:
		g.expel(g.members[n%len(g.members)])
	}
	w.say("%v", a)
	return true
}
