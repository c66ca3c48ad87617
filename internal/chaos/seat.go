package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/outbox"
)

// seat is where a process runs, one after the other: who is killed has a successor, on the
// same network.
type seat struct {
	r    *run
	name string
	role string

	postgres *netfault.Relay
	kafka    map[string]*netfault.Relay // by the address of the server

	// A fault of the process, and one of each network, at a time.
	busy, postgresBusy, kafkaBusy sync.Mutex

	mu    sync.Mutex
	now   *Process
	pids  []int         // of all that ran here
	meant bool          // that it ends
	ahead time.Duration // its clock
	ready chan struct{} // closed when the present one runs
}

// instance is a process that ran in a seat.
type instance struct {
	process *Process
	ahead   time.Duration
}

// connect makes the seat's own ways to the servers.
func (r *run) connect(ctx context.Context, name, role string) (*seat, error) {
	s := &seat{r: r, name: name, role: role, kafka: map[string]*netfault.Relay{}}
	var err error
	if r.door != "" {
		if s.postgres, err = netfault.New(ctx, r.door); err != nil {
			return nil, err
		}
	}
	for _, server := range r.servers {
		if s.kafka[server], err = netfault.New(ctx, server); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// disconnect ends what connect began, once the process is gone.
func (s *seat) disconnect() {
	if s.postgres != nil {
		s.postgres.Mend()
		s.postgres.Cut()
		s.postgres.Close()
	}
	for _, k := range s.kafka {
		k.Mend()
		k.Cut()
		k.Close()
	}
}

func (s *seat) config() nodeConfig {
	r := s.r
	cfg := nodeConfig{Role: s.role, DSN: r.cfg.Postgres, Schema: r.schema, Kafka: r.cfg.Kafka, Prefix: r.prefix, Detour: map[string]string{}, OnFailover: outbox.Continue}
	if r.cfg.Asynchronous {
		cfg.OnFailover = outbox.Stop
	}
	if s.role == consumerRole {
		cfg.Schema = r.consumers
	}
	if s.postgres != nil {
		u, err := url.Parse(r.cfg.Postgres) // it was parsed before
		if err == nil {
			u.Host = s.postgres.Address
			cfg.DSN = u.String()
		}
	}
	for server, relay := range s.kafka {
		cfg.Detour[server] = relay.Address
	}
	return cfg
}

// start starts the next process of the seat.
func (s *seat) start() error {
	text, err := json.Marshal(s.config())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	program := s.r.cfg.Program
	if s.ahead != 0 {
		program = s.r.shifted
	}
	cmd := exec.Command(program) //nolint:gosec,noctx // It is this program, and is ended by faults.
	cmd.Env = append(os.Environ(), NodeVar+"="+string(text), fmt.Sprintf("%s=%d", ShiftVar, int(s.ahead.Seconds())))
	ready := make(chan struct{})
	var once sync.Once
	p, err := Launch(s.r.cfg.Dir, s.name, cmd, func(line string) {
		switch {
		case line == running:
			once.Do(func() { close(ready) })
		case strings.HasPrefix(line, savedWords):
			s.r.saved(s.name, strings.TrimPrefix(line, savedWords))
		case strings.HasPrefix(line, didWords):
			s.r.done(s.name, strings.TrimPrefix(line, didWords))
		case strings.HasPrefix(line, ackedWords):
			s.r.acknowledges(strings.Fields(strings.TrimPrefix(line, ackedWords)))
		}
	})
	if err != nil {
		return err
	}
	s.now, s.ready, s.meant = p, ready, false
	s.pids = append(s.pids, p.PID())
	s.r.launched(instance{p, s.ahead})
	s.r.history.note(entry{At: s.r.clock(), What: "start", Process: s.name, PID: p.PID(), Text: clockText(s.ahead)})
	s.r.watching.Go(func() { s.watch(p) })
	return nil
}

func clockText(ahead time.Duration) string {
	if ahead == 0 {
		return ""
	}
	return fmt.Sprintf("its clock is off by %v", ahead)
}

// watch starts a successor of a process that has ended by itself, as any supervisor does.
func (s *seat) watch(p *Process) {
	<-p.Ended()
	s.mu.Lock()
	meant := s.meant
	s.mu.Unlock()
	s.r.ended(s, p, meant)
	if meant {
		return
	}
	select {
	case <-time.After(time.Second):
	case <-s.r.over:
		return
	}
	s.mu.Lock()
	mine := s.now == p && !s.meant
	s.mu.Unlock()
	if mine {
		s.r.fail(s.start())
	}
}

// current is the process that runs, which is meant to end from now on if the caller says so.
func (s *seat) current(ends bool) *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meant = s.meant || ends
	return s.now
}

// present is the place of the process that runs among all that ran here.
func (s *seat) present() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pids) - 1
}

// since are the numbers of that process and of its successors.
func (s *seat) since(place int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pids[place:])
}

// stop ends the process cleanly, or by force if that takes too long.
func (s *seat) stop() {
	p := s.current(true)
	_ = p.terminate() // it may have ended
	select {
	case <-p.Ended():
	case <-time.After(45 * time.Second):
		p.Kill()
	}
}

// until returns when the process runs, or one of its successors.
func (s *seat) until(ctx context.Context) error {
	for {
		s.mu.Lock()
		ready := s.ready
		s.mu.Unlock()
		select {
		case <-ready:
			return nil
		case <-time.After(100 * time.Millisecond): // it may have a successor
		case <-ctx.Done():
			return fmt.Errorf("%s doesn't run: %w; its log is in %s", s.name, ctx.Err(), s.r.cfg.Dir)
		}
	}
}
