package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// From when on something is worth a reason; deploy/prometheus/waybill-alerts.yaml
// has the same numbers.
const (
	oldWarning, oldCritical       = time.Minute, 10 * time.Minute // of the oldest row
	storedWarning, storedCritical = 1000, 10000                   // rows
	farBehind                     = 10 * time.Minute              // a subscription
	// stillAfter is how long nothing has moved, while something waits, before that is
	// no mere pause.
	stillAfter = 5 * time.Minute
	// settling is for what is so for a moment whenever something starts.
	settling = 30 * time.Second
	// cutOffFor is how long a broker gives a subscription nothing before that counts:
	// longer than a group takes to divide a topic anew.
	cutOffFor = 4 * time.Second
	// recentLoss is how long it is told that messages were missed.
	recentLoss = 24 * time.Hour
	// recentCrash is for how long a crash shows. A lane that crashes again and again
	// starts more often than that.
	recentCrash = time.Minute
	// watchEvery is how often the watchdog looks if nobody else asks: what doesn't move
	// is only seen by who has looked before.
	watchEvery = time.Minute
)

// condition is how an engine is, in a word.
type condition string

const (
	healthy  condition = "healthy"
	degraded condition = "degraded" // something needs a look, and the rest goes on
	stuck    condition = "stuck"    // something does not go on
)

// diagnosis is the answer of /api/health.
type diagnosis struct {
	State   condition `json:"state"`
	Summary string    `json:"summary"`
	Reasons []reason  `json:"reasons"`

	plainSummary string // Summary without content
}

// reason is one thing that is not as it should be. Codes don't change.
type reason struct {
	Code         string     `json:"code"`
	State        condition  `json:"state"` // degraded or stuck
	Provider     string     `json:"provider,omitempty"`
	Target       string     `json:"target,omitempty"`
	Subscription string     `json:"subscription,omitempty"`
	Broker       string     `json:"broker,omitempty"`
	Projection   string     `json:"projection,omitempty"` // and its build
	Since        *time.Time `json:"since"`                // this process saw it first
	Text         string     `json:"text"`

	plain        string        // Text without content
	what, remedy string        // "{only}" in a command stands for the flags that choose the part
	lasting      time.Duration // it must have lasted before it counts
	quiet        bool          // nobody else logs it
}

// key is the same for the same reason at another time.
func (r *reason) key() string {
	return strings.Join([]string{r.Code, r.Provider, r.Target, r.Subscription, r.Broker, r.Projection}, "\x00")
}

// where names its part for people.
func (r *reason) where() string {
	switch {
	case r.Subscription != "":
		return "subscription " + r.Subscription
	case r.Projection != "":
		return "projection " + r.Projection
	case r.Target != "":
		return "outbox " + r.Provider + " to " + r.Target
	case r.Broker != "":
		return "broker " + r.Broker
	case r.Provider != "":
		return "database " + r.Provider
	}
	return "the engine"
}

// only are the flags by which a command is about this part only.
func (r *reason) only() string {
	if r.Subscription != "" {
		return "--subscription " + r.Subscription
	}
	return "--target " + r.Target
}

// watchdog remembers what was seen, to know what doesn't move and since when
// something is so. It is safe for concurrent use.
type watchdog struct {
	log *slog.Logger
	now func() time.Time

	mu        sync.Mutex
	since     map[string]time.Time // of reasons, by key
	told      map[string]reason    // that were logged
	published map[lane]mark
	crashed   map[lane]mark
	handled   map[lane]mark
}

// mark is a number, and when it last changed.
type mark struct {
	n    int64
	at   time.Time
	left int64 // to do
}

func newWatchdog(log *slog.Logger) *watchdog {
	return &watchdog{
		log: log, now: time.Now,
		since: map[string]time.Time{}, told: map[string]reason{},
		published: map[lane]mark{}, crashed: map[lane]mark{}, handled: map[lane]mark{},
	}
}

// judge says how the engine is, of which s was seen.
func (w *watchdog) judge(s sight) diagnosis {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now() // Not as UTC, which has no monotonic clock: the other one may be set back.
	w.remember(s, now)
	found, plain := s.reasons(), map[string]string{}
	for _, r := range s.withoutContent().reasons() {
		plain[r.key()] = r.what
	}
	since := map[string]time.Time{}
	d := diagnosis{State: healthy, Reasons: []reason{}}
	for _, r := range found {
		first, ok := w.since[r.key()]
		if !ok {
			first = now
		}
		since[r.key()] = first
		if now.Sub(first) < r.lasting {
			continue
		}
		at := first.UTC()
		r.Since = &at
		r.Text, r.plain = r.text(r.what), r.text(plain[r.key()])
		d.Reasons = append(d.Reasons, r)
	}
	w.since = since
	slices.SortFunc(d.Reasons, func(a, b reason) int {
		return cmp.Or(cmp.Compare(b.State, a.State), cmp.Compare(a.key(), b.key())) // "stuck" comes after "degraded"
	})
	d.Summary, d.plainSummary = "everything is running", "everything is running"
	if len(d.Reasons) > 0 {
		worst, more := d.Reasons[0], ""
		if n := len(d.Reasons) - 1; n > 0 {
			more = fmt.Sprintf("; and %d more", n)
		}
		d.State = worst.State
		d.Summary, d.plainSummary = worst.where()+": "+worst.what+more, worst.where()+": "+plain[worst.key()]+more
	}
	w.tell(d, s)
	return d
}

// text is a whole reason, of which what is the middle.
func (r *reason) text(what string) string {
	return fmt.Sprintf("%s: %s; since %s. %s", r.where(), what, r.Since.Format(time.RFC3339), strings.ReplaceAll(r.remedy, "{only}", r.only()))
}

// remember fills in what only shows over time.
func (w *watchdog) remember(s sight, now time.Time) {
	for provider, o := range s.outboxes {
		for target, l := range o.lanes {
			at := lane{provider, target}
			if l.stats != nil {
				m, ok := w.published[at]
				if n := l.stats.Counts[outbox.Published]; !ok || n != m.n {
					m = mark{n: n, at: now}
				}
				w.published[at], l.still = m, now.Sub(m.at)
			}
			if l.status != nil {
				m := w.crashed[at]
				if l.status.Crashes > m.n {
					m = mark{n: l.status.Crashes, at: now}
				}
				if w.crashed[at] = m; m.n > 0 {
					ago := now.Sub(m.at)
					l.crash = &ago
				}
			}
			o.lanes[target] = l
		}
	}
	for name, c := range s.subscriptions {
		at := lane{c.provider, name}
		m, ok := w.handled[at]
		done := c.status.Handled + c.status.Duplicates + c.status.Ignored + c.status.Dropped + c.status.Parked
		left := m.left
		if c.lag != nil {
			left = c.lag.Messages
		}
		if !ok || done != m.n || left < m.left || left == 0 {
			m = mark{n: done, at: now}
		}
		m.left = left
		w.handled[at], c.still = m, now.Sub(m.at)
		s.subscriptions[name] = c
	}
}

// tell logs what nobody else does, once when it begins and once when it is over.
func (w *watchdog) tell(d diagnosis, s sight) {
	told := map[string]reason{}
	for _, r := range d.Reasons {
		if !r.quiet {
			continue
		}
		told[r.key()] = r
		if _, ok := w.told[r.key()]; !ok {
			w.log.Warn("something is stuck", "code", r.Code, "reason", r.Text)
		}
	}
	for key, r := range w.told {
		if _, ok := told[key]; ok {
			continue
		}
		if !s.sees(r) {
			told[key] = r // not known to be over
			continue
		}
		w.log.Info("it has recovered", "code", r.Code, "what", r.where())
	}
	w.told = told
}

// sees says whether r would have been found if it were so.
func (s sight) sees(r reason) bool {
	if !answers(s.parts.Providers, r.Provider) {
		return false
	}
	if r.Subscription != "" {
		return s.subscriptions[r.Subscription].lag != nil
	}
	return s.outboxes[r.Provider].err == ""
}

// diagnose says how the engine is.
func (e *Engine) diagnose(ctx context.Context) diagnosis { return e.watchdog.judge(e.look(ctx)) }

// watch looks now and then, for what shows only to who has looked before.
func (e *Engine) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			e.diagnose(ctx)
			e.tellOfBrokers(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (e *Engine) apiHealth(r *http.Request) (any, error) {
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	d := e.diagnose(r.Context())
	if !visitorOf(r).content() {
		d = d.withoutContent()
	}
	return d, nil
}
