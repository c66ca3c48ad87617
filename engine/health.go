package engine

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
)

// health is the answer of /readyz.
type health struct {
	// Status is "ready", "degraded" (ready, though something waits for a broker),
	// "unavailable", "starting", "draining" or "stopped".
	Status     string     `json:"status"`
	Components components `json:"components"`
	// Health is the watchdog's word. It does not change the status.
	Health *diagnosis `json:"health,omitempty"`
}

type components struct {
	Providers     map[string]component            `json:"providers"`
	Brokers       map[string]component            `json:"brokers"`
	Processors    map[string]map[string]component `json:"processors"` // by provider and target broker
	Subscriptions map[string]component            `json:"subscriptions"`
}

// component is one part's health. OK is null if it is not known.
type component struct {
	OK    *bool   `json:"ok"`
	Error *string `json:"error"`

	slow   time.Duration // It answers, after longer than somebody waits who asks.
	held   string        // Who of this process has had its one writer for long; "": nobody.
	usedUp bool          // It answers, and this process has no connection left for units of work, or at all.
}

func newComponent(ok bool, text string) component {
	c := component{OK: &ok}
	if !ok && text != "" {
		text = strings.ReplaceAll(text, "\n", "; ") // Of errors that were joined.
		c.Error = &text
	}
	return c
}

// look asks what a cached check says. No answer in time is not known.
func look(ctx context.Context, check *cached[error]) component {
	err, known := check.get(ctx)
	switch {
	case !known:
		text := "no answer in time"
		return component{Error: &text}
	case err != nil:
		return newComponent(false, err.Error())
	}
	return newComponent(true, "")
}

func (e *Engine) livez(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]string{"status": "alive"})
}

// readyz says why to those who may read, and to others only whether.
func (e *Engine) readyz(w http.ResponseWriter, r *http.Request, free func(*http.Request) bool) {
	var h health
	visitor, refused := e.judge(free, readers, r)
	details := refused == nil
	if details {
		s := e.look(r.Context())
		d := e.watchdog.judge(s)
		if !visitor.content() {
			s, d = s.withoutContent(), d.withoutContent()
		}
		h = health{Status: s.status, Components: s.parts, Health: &d}
	} else {
		h = e.health(r.Context())
	}
	status := http.StatusOK
	if h.Status != "ready" && h.Status != "degraded" {
		status = http.StatusServiceUnavailable
	}
	if !details {
		reply(w, status, map[string]string{"status": h.Status})
		return
	}
	reply(w, status, h)
}

// health looks at all parts at the same time. Databases decide whether the
// engine is ready: without a broker, rows and messages wait, and the service
// goes on.
func (e *Engine) health(ctx context.Context) health {
	c := components{
		Providers: map[string]component{}, Brokers: map[string]component{},
		Processors: map[string]map[string]component{}, Subscriptions: map[string]component{},
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, d := range e.databases {
		all.Go(func() {
			state := d.component(ctx)
			mu.Lock()
			defer mu.Unlock()
			c.Providers[d.provider.Name()] = state
		})
	}
	for _, l := range e.links {
		all.Go(func() {
			state := look(ctx, l.usable)
			mu.Lock()
			defer mu.Unlock()
			c.Brokers[l.name] = state
		})
	}
	all.Wait()
	for _, d := range e.databases {
		if d.processor == nil {
			continue
		}
		lanes, status := map[string]component{}, d.status()
		for _, l := range d.lanes {
			lane, running := status[l.Target]
			switch {
			case !running:
				lanes[l.Target] = newComponent(false, "it doesn't run")
				continue
			case lane.Breaker != "closed":
				c.Brokers[l.Target] = newComponent(false, lane.LastError)
			}
			lanes[l.Target] = newComponent(lane.Running && lane.Breaker == "closed" && lane.Database == nil, lane.LastError)
		}
		c.Processors[d.provider.Name()] = lanes
	}
	for _, s := range e.streams {
		status := s.runner.Status()
		c.Subscriptions[s.name] = newComponent(status.Running && !status.Open && status.Database == nil, status.LastError)
	}
	return health{Status: e.verdict(c), Components: c}
}

func (e *Engine) verdict(c components) string {
	switch e.phase.Load() {
	case idle, starting:
		return "starting"
	case draining:
		return "draining"
	case stopped:
		return "stopped"
	}
	if !allWell(c.Providers) {
		return "unavailable"
	}
	well := allWell(c.Brokers) && allWell(c.Subscriptions)
	for _, lanes := range c.Processors {
		well = well && allWell(lanes)
	}
	if !well {
		return "degraded"
	}
	return "ready"
}

func allWell(parts map[string]component) bool {
	for _, part := range parts {
		if part.OK == nil || !*part.OK {
			return false
		}
	}
	return true
}
