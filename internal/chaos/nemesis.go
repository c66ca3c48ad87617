package chaos

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/internal/verdict"
)

// late is how long after a fault what was out then may still end.
const late = 5 * time.Second

// commandPatience ends a command that doesn't end.
const commandPatience = 5 * time.Minute

// torment does what the plan says until ctx is done, and returns when all is mended.
func (r *run) torment(ctx context.Context) {
	var seats, kafka []int
	for i, s := range r.seats {
		seats = append(seats, i)
		if s.role != writerRole {
			kafka = append(kafka, i)
		}
	}
	p := newPlan(r.cfg.Seed, r.on, seats, kafka)
	var all sync.WaitGroup
	defer all.Wait()
	for {
		s := p.next()
		select {
		case <-time.After(s.after):
		case <-ctx.Done():
			return
		}
		all.Go(func() { r.fail(r.apply(ctx, s)) })
	}
}

// apply does one fault and mends it. One that another is in the way of doesn't happen.
func (r *run) apply(ctx context.Context, s step) error {
	seat := r.seats[s.seat]
	switch {
	case r.cfg.Commands[s.kind] != "":
		return r.command(ctx, s.kind)
	case onPostgres(s.kind):
		return r.network(ctx, s, seat, &seat.postgresBusy, []*netfault.Relay{seat.postgres})
	case onKafka(s.kind):
		var relays []*netfault.Relay
		for _, k := range seat.kafka {
			relays = append(relays, k)
		}
		return r.network(ctx, s, seat, &seat.kafkaBusy, relays)
	}
	if !seat.busy.TryLock() {
		return nil
	}
	defer seat.busy.Unlock()
	switch s.kind {
	case stopFault:
		return r.pause(ctx, s, seat)
	case clockFault:
		begin := r.clock()
		p := seat.current(false)
		seat.stop()
		seat.mu.Lock()
		seat.ahead = s.ahead
		seat.mu.Unlock()
		r.happened(s.kind, seat, p.PID(), begin, r.clock(), false)
		return seat.start()
	default:
		return r.kill(ctx, s, seat)
	}
}

func (r *run) kill(ctx context.Context, s step, seat *seat) error {
	p, begin := seat.current(true), r.clock()
	p.Kill()
	r.happened(s.kind, seat, p.PID(), begin, r.clock(), true)
	wait(ctx, s.lasts)
	return seat.start()
}

func (r *run) pause(ctx context.Context, s step, seat *seat) error {
	p, begin := seat.current(false), r.clock()
	stopping, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := p.Pause(stopping)
	wait(ctx, s.lasts)
	resumed := p.Resume()
	select {
	case <-p.Ended(): // it had, or did so meanwhile
		return nil
	default:
	}
	r.happened(s.kind, seat, p.PID(), begin, r.clock(), true)
	if err != nil && ctx.Err() == nil {
		return err
	}
	return resumed
}

// network disturbs the way between a process and a server.
func (r *run) network(ctx context.Context, s step, seat *seat, busy *sync.Mutex, relays []*netfault.Relay) error {
	if !busy.TryLock() {
		return nil
	}
	defer busy.Unlock()
	begin := r.clock()
	how, _, _ := strings.Cut(s.kind, "-")
	for _, relay := range relays {
		switch how {
		case "cut":
			relay.Cut()
		case "silence":
			relay.Stall()
		default:
			relay.Slow(20_000) // bytes a second, of each connection
		}
	}
	before := seat.present()
	wait(ctx, s.lasts)
	for _, relay := range relays {
		relay.Slow(0)
		relay.Mend()
	}
	pids := seat.since(before)
	r.happened(s.kind, seat, pids[0], begin, r.clock(), true)
	for _, pid := range pids[1:] { // it befell its successors, too
		r.incident(verdict.Incident{Kind: s.kind, PID: pid, From: begin, Until: r.clock().Add(late)})
	}
	return nil
}

// command has the user's command break something and mend it. There is one at a time.
func (r *run) command(ctx context.Context, kind string) error {
	if !r.commands.TryLock() {
		return nil
	}
	defer r.commands.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandPatience) // what it has broken it shall mend
	defer cancel()
	begin := r.clock()
	cmd := exec.CommandContext(ctx, "sh", "-c", r.cfg.Commands[kind]) //nolint:gosec // The user asked for it.
	detach(cmd)
	cmd.WaitDelay = time.Second // servers that it has started hold its output
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState.ExitCode() != 0 {
		return fmt.Errorf("the command of %s failed: %w\n%s", kind, err, out)
	}
	r.happened(kind, nil, 0, begin, r.clock(), true)
	if !r.cfg.Asynchronous {
		return nil
	}
	return r.accept(ctx)
}

// happened notes a fault that is over; harms says that it may explain a repetition.
func (r *run) happened(kind string, seat *seat, pid int, from, until time.Time, harms bool) {
	e := entry{At: from, Until: until, What: "fault", Kind: kind, PID: pid}
	if seat != nil {
		e.Process = seat.name
	}
	r.history.note(e)
	r.mu.Lock()
	r.faults[kind]++
	r.last = strings.TrimSpace(kind + " " + e.Process)
	r.mu.Unlock()
	if !harms {
		return
	}
	if kind != killFault {
		until = until.Add(late)
	}
	// Who knows what the user's commands break, but for those of Kafka.
	undoes := r.cfg.Commands[kind] != "" && kind != restartKafkaFault
	r.incident(verdict.Incident{Kind: kind, PID: pid, From: from, Until: until, Undoes: undoes})
}

func (r *run) incident(i verdict.Incident) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.incidents = append(r.incidents, i)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
