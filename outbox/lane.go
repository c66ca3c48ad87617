package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/writer"
)

// What lanes ask of the database again and again. Workers claim and write back each
// for itself.
var (
	claiming   = dberr.Task{What: "claim rows"}
	settling   = dberr.Task{What: "write back what became of rows"}
	keeping    = dberr.Task{What: "keep its partitions"}
	watching   = dberr.Task{What: "look for rows"}
	promising  = dberr.Task{What: "find out what is settled", Aside: true}
	cleaningUp = dberr.Task{What: "remove expired rows", Aside: true}
)

func by(t dberr.Task, who string) dberr.Task {
	t.Who = who
	return t
}

// lane publishes the rows for one target broker. One goroutine, keep, holds
// the leases of all its workers; each worker claims, publishes and settles.
type lane struct {
	Lane
	p          *Processor
	target     string
	name       string
	log        *slog.Logger
	partitions int
	circuit    *circuit
	workers    []*worker
	working    sync.WaitGroup
	database   dberr.Outage

	inFlight  atomic.Int64
	attempts  atomic.Int64
	retries   atomic.Int64
	stale     atomic.Int64
	taken     atomic.Int64
	breaks    atomic.Int64
	crashes   atomic.Int64
	published rate
	latency   latencies
	lastError atomic.Pointer[string]
	promised  atomic.Pointer[Promise] // nil: none, as to partners
	silent    atomic.Pointer[Silence]
}

func newLane(p *Processor, cfg Lane, incarnation string) *lane {
	l := &lane{Lane: cfg, p: p, target: cfg.Target, circuit: newCircuit(p.cfg.Outbox.Workers)}
	l.name = fmt.Sprintf("outbox-processor-%s-to-%s", p.cfg.Provider, cfg.Target)
	if cfg.External {
		l.name += "-external"
	}
	l.log = p.log.With("lane", l.name)
	l.database.Log = l.log
	for i := range p.cfg.Outbox.Workers {
		l.workers = append(l.workers, newWorker(l, fmt.Sprintf("%s-%d", incarnation, i+1)))
	}
	return l
}

func (l *lane) start(hard context.Context) {
	for _, w := range l.workers {
		l.working.Go(func() { w.run(hard) })
	}
	finished := make(chan struct{})
	go func() {
		l.working.Wait()
		close(finished)
	}()
	l.p.done.Go(func() { l.keep(hard, finished) })
	if !l.External {
		l.p.done.Go(func() { l.promise(hard) })
	}
}

// worker is the one that holds a partition; nil: none of these.
func (l *lane) worker(partition int) *worker {
	for _, w := range l.workers {
		if w.own.holds(partition) {
			return w
		}
	}
	return nil
}

// ids are the names of the workers.
func (l *lane) ids() []string {
	ids := make([]string, len(l.workers))
	for i, w := range l.workers {
		ids[i] = w.id
	}
	return ids
}

func (l *lane) status() LaneStatus {
	s := LaneStatus{
		Name:               l.name,
		Workers:            len(l.workers),
		InFlight:           int(l.inFlight.Load()),
		Published:          l.published.total.Load(),
		PublishedPerSecond: l.published.perSecond(),
		Attempts:           l.attempts.Load(),
		Retries:            l.retries.Load(),
		Stale:              l.stale.Load(),
		TakenOver:          l.taken.Load(),
		OrderBreaks:        l.breaks.Load(),
		Crashes:            l.crashes.Load(),
		Latency:            l.latency.lately(time.Now()),
		Latencies:          l.latency.total(),
		Silent:             l.silent.Load(),
	}
	s.Breaker, s.OpenTopics = l.circuit.state()
	for _, w := range l.workers {
		s.Partitions += w.own.len()
	}
	s.RetryRate = retryRate(s.Attempts, s.Retries)
	if e := l.lastError.Load(); e != nil {
		s.LastError = *e
	}
	if s.Database = l.database.Worst(); s.Database != nil {
		s.LastError = clip("the database does not let it " + s.Database.What + ": " + s.Database.Error)
	}
	return s
}

// owner is a worker as the store knows it.
func (l *lane) owner(w *worker) Owner {
	cfg := l.p.cfg.Outbox
	return Owner{Target: l.target, Worker: w.id, Lease: cfg.Lease, OnAbandoned: cfg.OnAbandoned, Abandoned: cfg.Retention.Abandoned}
}

// until is how long a lease may be relied on that was asked for at begin.
func (l *lane) until(begin time.Time) time.Time {
	lease := l.p.cfg.Outbox.Lease
	return begin.Add(lease - margin(lease))
}

// took notes what became of claims that nobody settled.
func (l *lane) took(t Takeover) {
	if n := t.Pending + len(t.Abandoned); n > 0 {
		l.taken.Add(int64(n))
		l.log.Warn("rows were taken over that another worker had claimed and not settled", "rows", n)
	}
	for _, seq := range t.Abandoned {
		l.log.Error("a row was abandoned", "seq", seq, "class", "crash")
	}
}

// crashed notes that a part of the lane panicked. It goes on.
func (l *lane) crashed(part string, v any) {
	err := fmt.Errorf("outbox: %s: %v\n%s", part, v, debug.Stack())
	l.failed(err)
	l.crashes.Add(1)
	l.log.Error("a part of the lane crashed and goes on", "part", part, "error", err)
}

// failed notes an error for people to see.
func (l *lane) failed(err error) {
	text := clip(err.Error())
	l.lastError.Store(&text)
}

// keep announces and renews every third of the lease, until all workers have
// finished, and looks more often whether the shares are right: a partition that
// was released or whose owner died must not wait for the next renewal.
//
// It has a connection of its own where the database has more than one: behind
// busy workers a renewal would come too late just when they have most to do.
func (l *lane) keep(hard context.Context, finished <-chan struct{}) {
	k := keeper{lane: l, watched: watched{host: l.p.host, mine: l.ids(), lease: l.p.cfg.Outbox.Lease}}
	defer k.leave(hard)
	cfg := l.p.cfg.Outbox
	tick := min(cfg.Lease/3, cfg.MaxPollInterval)
	for {
		k.turn(hard)
		timer := time.NewTimer(tick)
		select {
		case <-timer.C:
		case <-finished:
			timer.Stop()
			return
		}
	}
}

// keeper is the state of keep.
type keeper struct {
	lane    *lane
	conn    *bun.Conn
	renewed time.Time // when the last renewal that succeeded began
	careful time.Time // until then partitions are taken one by one
	watched watched
}

// portion is how many partitions to take at once: one by one after a takeover
// met a row that others have locked, so that only its partition has to wait.
func (k *keeper) portion(n int) int {
	if time.Now().Before(k.careful) {
		return 1
	}
	return n
}

func (k *keeper) turn(ctx context.Context) {
	l, lease := k.lane, k.lane.p.cfg.Outbox.Lease
	defer func() {
		if v := recover(); v != nil {
			l.crashed("keeping leases", v)
			k.drop()
		}
	}()
	ctx, cancel := context.WithTimeout(writer.Urgent(ctx), lease/3)
	defer cancel()
	var err error
	if time.Since(k.renewed) >= lease/3-lease/30 {
		err = k.renew(ctx)
	}
	if err == nil && !l.p.stopping() {
		err = k.balance(ctx)
	}
	l.database.Note(ctx, keeping, err)
	if err != nil {
		k.drop()
	}
}

func (k *keeper) db(ctx context.Context) (bun.IDB, error) {
	store := k.lane.p.cfg.Store
	if store.sqlite() {
		return store.db, nil
	}
	if k.conn == nil {
		conn, err := store.db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		k.conn = &conn
	}
	return k.conn, nil
}

func (k *keeper) drop() {
	if k.conn != nil {
		_ = k.conn.Close() // it is broken, or no longer needed
		k.conn = nil
	}
}

func (k *keeper) renew(ctx context.Context) error {
	l, cfg := k.lane, k.lane.p.cfg.Outbox
	db, err := k.db(ctx)
	if err != nil {
		return err
	}
	var asked []Lease
	for _, w := range l.workers {
		asked = append(asked, w.own.all(w.id)...)
	}
	begin := time.Now()
	kept, err := l.p.cfg.Store.Announce(ctx, db, l.target, l.ids(), asked, cfg.Lease)
	if err != nil {
		return fmt.Errorf("renew leases: %w", err)
	}
	k.renewed = begin
	lost := 0
	for _, w := range l.workers {
		lost += w.own.renewed(of(w.id, asked), of(w.id, kept), l.until(begin))
	}
	if lost > 0 {
		l.log.Warn("leases had run out and others have taken the partitions", "partitions", lost)
	}
	return nil
}

func of(worker string, leases []Lease) []Lease {
	var own []Lease
	for _, l := range leases {
		if l.Worker == worker {
			own = append(own, l)
		}
	}
	return own
}

// balance gives every worker its share, the partitions divided by the workers
// that are alive in all processes. Nobody takes from a running lease: who has too
// much releases, who has too little takes what is free.
func (k *keeper) balance(ctx context.Context) error {
	l := k.lane
	m, err := k.members(ctx)
	if err != nil {
		return fmt.Errorf("look for free partitions: %w", err)
	}
	alive := max(m.Workers, len(l.workers))
	share := (l.partitions + alive - 1) / alive
	for _, w := range l.workers {
		have := w.own.len()
		w.own.setSurplus(max(have-share, 0))
		if have > share {
			w.look()
		}
		if have >= share || m.Free == 0 {
			continue
		}
		begin := time.Now()
		leases, taken, err := l.p.cfg.Store.Acquire(ctx, l.owner(w), k.portion(share-have))
		if lockTimeout(err) {
			k.careful = time.Now().Add(caution)
			continue
		}
		if err != nil {
			return fmt.Errorf("take partitions: %w", err)
		}
		if len(leases) == 0 {
			continue
		}
		m.Free -= len(leases)
		w.own.add(leases, l.until(begin))
		l.log.Debug("partitions taken", "worker", w.id, "partitions", len(leases))
		l.took(taken)
		w.look()
	}
	k.watch(m)
	return nil
}

// watch notes and says whether rows wait for other processes, after the lane has
// taken what it could.
func (k *keeper) watch(m Membership) {
	l, now := k.lane, time.Now()
	have := 0
	for _, w := range l.workers {
		have += w.own.len()
	}
	silent := k.watched.look(m, now)
	l.silent.Store(silent)
	k.watched.say(l.log, silent, k.watched.held(m), have, l.partitions, now)
}

// members looks at all workers, of whom those whose processes have ended on this
// host are no more: nobody waits for leases that nobody will renew, and the dead
// have no share.
func (k *keeper) members(ctx context.Context) (Membership, error) {
	l := k.lane
	m, err := l.p.cfg.Store.Membership(ctx, l.target)
	var dead []string
	for _, member := range m.Members {
		if l.p.host.State(member.Worker) == liveness.Dead {
			dead = append(dead, member.Worker)
		}
	}
	if err != nil || len(dead) == 0 {
		return m, err
	}
	db, err := k.db(ctx)
	if err != nil {
		return m, err
	}
	n, err := l.p.cfg.Store.Forget(ctx, db, l.target, dead)
	if err != nil {
		return m, err
	}
	l.log.Info("workers whose processes have ended on this host left their partitions at once", "workers", dead, "partitions", n)
	return l.p.cfg.Store.Membership(ctx, l.target)
}

// leave takes the workers off the list, so that others count on without them. What
// was taken for one that had ended meanwhile is released, too; after a hard stop the
// leases run out.
func (k *keeper) leave(ctx context.Context) {
	defer k.drop()
	if ctx.Err() == nil {
		for _, w := range k.lane.workers {
			w.release(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := k.lane.p.cfg.Store.Leave(ctx, k.lane.target, k.lane.ids()); err != nil {
		k.lane.log.Debug("the workers' announcement will run out by itself", "error", err)
	}
}

// rate counts, and knows how many there were in the last ten seconds.
type rate struct {
	total atomic.Int64
	mu    sync.Mutex
	slots [10]int64
	at    int64 // the second of the newest slot
}

func (r *rate) add(n int) {
	r.total.Add(int64(n))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	r.slots[r.at%int64(len(r.slots))] += int64(n)
}

func (r *rate) perSecond() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	var sum int64
	for _, n := range r.slots {
		sum += n
	}
	return float64(sum) / float64(len(r.slots))
}

func (r *rate) advance() {
	now := time.Now().Unix()
	for steps := 0; r.at < now && steps < len(r.slots); steps++ {
		r.at++
		r.slots[r.at%int64(len(r.slots))] = 0
	}
	r.at = now
}
