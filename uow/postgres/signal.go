package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

const (
	// signalEvery keeps notifications apart: they commit one after the other in
	// the whole database.
	signalEvery   = 10 * time.Millisecond
	signalTimeout = 5 * time.Second
	// signalRest is how long there are none after one that failed.
	signalRest = time.Second
	// signalSize is what PostgreSQL takes, less a little.
	signalSize = 7900
)

// channel is named after a table, so that each schema has its own.
const channel = "'waybill_outbox_' || 'outbox_settings'::regclass::oid"

// signals are notifications on their way: those that come while one is out, or
// too soon after it, leave together.
type signals struct {
	p    *provider
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	waiting map[outbox.Poke]bool
	sending bool
}

func newSignals(p *provider) *signals {
	s := &signals{p: p, waiting: map[outbox.Poke]bool{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Signal leaves after the commit and outside it: a notification in the user's
// transaction would make all of them commit one after the other.
func (p *provider) Signal(pokes []outbox.Poke) {
	s := p.signals
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	for _, poke := range pokes {
		s.waiting[poke] = true
	}
	if !s.sending && len(s.waiting) > 0 {
		s.sending = true
		s.done.Go(s.send)
	}
}

func (s *signals) close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.done.Wait()
}

// send goes on until nothing waits.
func (s *signals) send() {
	for {
		s.mu.Lock()
		pokes := slices.Collect(maps.Keys(s.waiting))
		clear(s.waiting)
		s.sending = len(pokes) > 0
		s.mu.Unlock()
		if len(pokes) == 0 {
			return
		}
		rest := signalEvery
		if err := s.notify(pokes); err != nil {
			rest = signalRest
		}
		select {
		case <-time.After(rest):
		case <-s.ctx.Done():
		}
	}
}

// notify needn't survive a crash of the server, and waits for no disk.
func (s *signals) notify(pokes []outbox.Poke) error {
	ctx, cancel := context.WithTimeout(s.ctx, signalTimeout)
	defer cancel()
	_, err := s.p.pool.Exec(ctx, "SELECT set_config('synchronous_commit', 'off', true), pg_notify("+channel+", $1)", payload(pokes))
	return err
}

// payload is the partitions by their target, or nothing if that is too much.
func payload(pokes []outbox.Poke) string {
	partitions := map[string][]int{}
	for _, p := range pokes {
		partitions[p.Target] = append(partitions[p.Target], p.Partition)
	}
	text, err := json.Marshal(partitions)
	if err != nil || len(text) > signalSize {
		return ""
	}
	return string(text)
}

// pokesOf is nil for what doesn't say which.
func pokesOf(payload string) (pokes []outbox.Poke) {
	var partitions map[string][]int
	if err := json.Unmarshal([]byte(payload), &partitions); err != nil {
		return nil
	}
	for target, all := range partitions {
		for _, partition := range all {
			pokes = append(pokes, outbox.Poke{Target: target, Partition: partition})
		}
	}
	return pokes
}

// Watch listens on a connection beside the pool, which the providers of a server share.
func (p *provider) Watch(ctx context.Context, hear func(pokes []outbox.Poke)) error {
	var name string
	if err := p.pool.QueryRow(ctx, "SELECT "+channel).Scan(&name); err != nil {
		return fmt.Errorf("postgres: provider %q can't listen: %w", p.name, err)
	}
	if err := p.past.listener.watch(ctx, name, hear); err != nil {
		return fmt.Errorf("postgres: provider %q %w", p.name, err)
	}
	return nil
}
