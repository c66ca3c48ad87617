package waybilltest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// handed is what subscriptions of a process were given and have not settled.
type handed struct {
	mu  sync.Mutex
	all map[string]*outside
}

// of is that of a group, which is a subscription's name.
func (h *handed) of(group string) *outside {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[string]*outside{}
	}
	if h.all[group] == nil {
		h.all[group] = &outside{since: map[string]given{}}
	}
	return h.all[group]
}

// outside are messages that a subscription has, by their ids.
type outside struct {
	mu    sync.Mutex
	since map[string]given
}

// given is a message and when it was handed out.
type given struct {
	broker.Message
	at time.Time
}

func (o *outside) add(deliveries []broker.Delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range deliveries {
		o.since[d.ID] = given{d.Message, time.Now()}
	}
}

func (o *outside) remove(deliveries []broker.Delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range deliveries {
		delete(o.since, d.ID)
	}
}

// oldest says of the messages that came first what they are, and for how long they are there.
func (o *outside) oldest() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var sorted []given
	for _, g := range o.since {
		sorted = append(sorted, g)
	}
	slices.SortFunc(sorted, func(a, b given) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.ID, b.ID)) })
	for _, g := range sorted[:min(len(sorted), some)] {
		all = append(all, fmt.Sprintf("%s %s of key %q, received %v ago", g.Headers["type"], g.ID, g.Key, time.Since(g.at).Round(time.Millisecond)))
	}
	return all
}
