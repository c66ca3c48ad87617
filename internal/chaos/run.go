package chaos

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/verdict"
)

// Config says where to run, and for how long.
type Config struct {
	Postgres string            // a URL
	Kafka    []string          // addresses
	Duration time.Duration     // of the faults
	Seed     uint64            // of their plan
	Schema   string            // of the tables; there is another one, of the same name and "_consumers"
	Faults   []string          // that are wanted; empty: all that are possible
	Commands map[string]string // by the kind of fault: what breaks something and mends it
	Dir      string            // for the history and logs; it exists
	Keep     bool              // tables and topics
	// Asynchronous says that a failover may forget what was committed last. Engines then wait
	// for an operator, whom the run stands for; otherwise they go on with a promoted standby.
	Asynchronous bool
	Program      string    // that calls [RunNode] if [NodeVar] is set
	News         io.Writer // how it goes on
}

// drainPatience is how long nothing may move of what waits once nothing is disturbed any more.
const drainPatience = 5 * time.Minute

// every is how often there is a line of progress.
const every = 10 * time.Second

// run is a Config on its way.
type run struct {
	cfg               Config
	schema, consumers string
	prefix            string
	door              string   // PostgreSQL's host and port; empty: not by TCP
	servers           []string // Kafka's
	shifted           string   // the program with another clock
	on                []string // faults
	offset            time.Duration

	db    *sql.DB
	seats []*seat

	history  history
	heart    heart
	watching sync.WaitGroup
	over     chan struct{} // nobody gets a successor any more
	commands sync.Mutex
	cancel   context.CancelCauseFunc

	mu        sync.Mutex
	instances []instance
	incidents []verdict.Incident
	gone      map[int]time.Time
	told      []told               // effects
	acked     map[string]time.Time // when messages were first acknowledged
	crashes   []string             // of processes that ended as they never should
	faults    map[string]int
	last      string
	begin     time.Time
}

// Run runs it. An error says that it couldn't be run, or not to its end; a [RefusedError]
// that it didn't begin. When ctx ends there are no further faults, and the verdict comes.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	r := &run{cfg: cfg, schema: cfg.Schema, consumers: cfg.Schema + "_consumers", prefix: cfg.Schema + ".", over: make(chan struct{}), gone: map[int]time.Time{}, acked: map[string]time.Time{}, faults: map[string]int{}}
	// What is begun is ended however ctx ends.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	r.cancel = cancel
	off, err := r.prepare(work)
	if r.db != nil {
		defer func() { _ = r.db.Close() }()
	}
	if err != nil {
		return nil, err
	}
	result, err := r.play(ctx, work)
	if result != nil {
		result.Off = off
	}
	if err != nil || cfg.Keep || result.Failed() {
		r.say("kept: schemas %s and %s, topics %s*, and %s", r.schema, r.consumers, r.prefix, cfg.Dir)
		return result, err
	}
	return result, r.remove(work)
}

// play starts all, disturbs it, waits until everything is done, and judges.
func (r *run) play(ctx, work context.Context) (*Result, error) {
	defer r.clear()
	if err := r.populate(work); err != nil {
		return nil, errors.Join(err, context.Cause(work))
	}
	r.begin = time.Now()
	faults, cancel := context.WithTimeout(work, r.cfg.Duration)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	beating, rest := context.WithCancel(work)
	defer rest()
	progress := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { r.report(work, progress) })
	beside.Go(func() { r.heart.run(beating, r) })
	r.torment(faults)
	calm := time.Now()
	for _, s := range r.seats {
		if s.role == writerRole {
			s.stop()
		}
	}
	drained, left := r.drain(work)
	took := time.Since(calm)
	close(progress)
	rest()
	beside.Wait()
	if err := context.Cause(work); err != nil {
		return nil, err
	}
	r.clear()
	f, err := r.collect(work)
	if err != nil {
		return nil, err
	}
	if !drained {
		f.violations = append(f.violations, fmt.Sprintf("standstill: %s, %v after the last fault", left, took.Round(time.Second)))
	}
	result := r.judge(f, took)
	return result, r.history.write(result.History, f)
}

// populate starts the processes and waits until they run.
func (r *run) populate(ctx context.Context) error {
	for role, n := range map[string]int{engineRole: 3, writerRole: 2, consumerRole: 2} {
		for i := range n {
			s, err := r.connect(ctx, fmt.Sprintf("%s-%d", role, i+1), role)
			if err != nil {
				return err
			}
			r.seats = append(r.seats, s)
		}
	}
	sortSeats(r.seats)
	for _, s := range r.seats {
		if err := s.start(); err != nil {
			return err
		}
	}
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, s := range r.seats {
		if err := s.until(starting); err != nil {
			return err
		}
	}
	return nil
}

// clear ends all processes and their ways.
func (r *run) clear() {
	select {
	case <-r.over:
		return
	default:
	}
	close(r.over)
	var all sync.WaitGroup
	for _, s := range r.seats {
		if s.current(true) != nil {
			all.Go(s.stop)
		}
	}
	all.Wait()
	r.watching.Wait()
	for _, s := range r.seats {
		s.disconnect()
	}
}

// drain waits until all is published and has taken effect; left says what isn't.
func (r *run) drain(ctx context.Context) (done bool, left string) {
	var before counts
	deadline := time.After(drainPatience)
	for {
		c, err := r.count(ctx)
		if err == nil && c != before {
			before, deadline = c, time.After(drainPatience)
		}
		left = fmt.Sprintf("%d rows are not published, %d of %d events have had no effect, and %d messages are put aside", c.waiting, c.events-c.effects, c.events, c.aside)
		if err != nil {
			left = err.Error()
		}
		if err == nil && c.waiting == 0 && c.aside == 0 && r.handled(ctx, c) {
			return true, ""
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			return false, left
		case <-ctx.Done():
			return false, left
		}
	}
}

// counts is how far all has come.
type counts struct{ events, waiting, effects, aside int }

func (r *run) count(ctx context.Context) (c counts, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = r.db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM outbox_messages), (SELECT count(*) FROM outbox_queue), (SELECT count(*) FROM "+quoted(r.consumers)+".effects), "+
		"(SELECT count(*) FROM "+quoted(r.consumers)+".dead_letters WHERE status IN ('waiting', 'held'))").
		Scan(&c.events, &c.waiting, &c.effects, &c.aside)
	return c, err
}

// handled says that consumers have handled all events. Where effects may be forgotten, and events
// whose effects are there, their numbers say nothing.
func (r *run) handled(ctx context.Context, c counts) bool {
	if r.cfg.Asynchronous {
		return r.consumed(ctx)
	}
	return c.effects >= c.events
}

// consumed says that consumers have nothing left in Kafka.
func (r *run) consumed(ctx context.Context) bool {
	client, err := r.client()
	if err != nil {
		return false
	}
	defer client.Close()
	group := r.prefix + effectsName
	lags, err := kadm.NewClient(client).Lag(ctx, group)
	return err == nil && lags.Error() == nil && nothingLeft(lags[group].Lag[r.prefix+AccountTopic])
}

// nothingLeft says so of a topic, of whose partitions all have to be known: while a group shares
// them out anew, or a server of Kafka starts, some are missing or have an error in place of a number.
func nothingLeft(lags map[int32]kadm.GroupMemberLag) bool {
	for _, l := range lags {
		if l.Err != nil || l.Lag != 0 {
			return false
		}
	}
	return len(lags) == partitions
}

// report says now and then how it goes on.
func (r *run) report(ctx context.Context, end <-chan struct{}) {
	for {
		select {
		case <-time.After(every):
		case <-end:
			return
		}
		c, err := r.count(ctx)
		r.mu.Lock()
		total, last := 0, r.last
		for _, n := range r.faults {
			total += n
		}
		r.mu.Unlock()
		what := fmt.Sprintf("%d events, %d waiting to be published, %d effects", c.events, c.waiting, c.effects)
		if err != nil {
			what = "PostgreSQL doesn't answer"
		}
		r.say("%v of %v: %s; %d faults, the last one %s", time.Since(r.begin).Round(time.Second), r.cfg.Duration, what, total, last)
	}
}

func (r *run) say(format string, args ...any) { fmt.Fprintf(r.cfg.News, format+"\n", args...) }

// clock is the time as the database has it.
func (r *run) clock() time.Time { return time.Now().Add(r.offset) }

// fail ends the run, unless err is nil.
func (r *run) fail(err error) {
	if err != nil {
		r.cancel(err)
	}
}

func (r *run) launched(i instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances = append(r.instances, i)
}

// ended notes the end of a process. That it may fail is no news, where servers can't be
// reached as it starts; that it panics is.
func (r *run) ended(s *seat, p *Process, meant bool) {
	at, how := r.clock(), p.State().String()
	r.history.note(entry{At: at, What: "end", Process: s.name, PID: p.PID(), Text: how})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[p.PID()] = at
	if code := p.State().ExitCode(); !meant && code != 0 && code != 1 {
		r.crashes = append(r.crashes, fmt.Sprintf("crashed: %s (process %d) ended by itself: %s; see its log in %s", s.name, p.PID(), how, r.cfg.Dir))
	}
}

// saved notes what a writer was told is committed.
func (r *run) saved(process, text string) {
	var moves map[string]int64
	if json.Unmarshal([]byte(text), &moves) != nil {
		return // it was killed while it said so
	}
	at := r.clock()
	for key, n := range moves {
		r.history.note(entry{At: at, What: "saved", Process: process, Key: key, Number: n})
	}
}

// client is one of Kafka, past all faults.
func (r *run) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(r.cfg.Kafka...), kgo.RetryTimeout(time.Minute)}, opts...)...)
}

// found is what was left, and what is wrong with it beside what the evidence says.
type found struct {
	verdict.Evidence

	effects    []effect
	violations []string
	losses     []loss
	told       []told
	acked      map[string]time.Time
	letters    map[string]bool // by message: those that are or were put aside
	aside      int             // of them, those that were handled by themselves
	gone       map[string]int  // what PostgreSQL has forgotten
}

// effect is one of a message.
type effect struct {
	verdict.Effect

	message string
}

// collect reads everything that was left.
func (r *run) collect(ctx context.Context) (*found, error) {
	e, err := Collect(ctx, r.db)
	if err != nil {
		return nil, err
	}
	f := &found{Evidence: e}
	if f.Deliveries, err = Delivered(ctx, r.client, r.prefix+AccountTopic); err != nil {
		return nil, err
	}
	err = Each(ctx, r.db, "SELECT at, account, number, message FROM "+quoted(r.consumers)+".effects ORDER BY n", func(scan func(...any) error) error {
		var e effect
		err := scan(&e.At, &e.Key, &e.Number, &e.message)
		f.effects = append(f.effects, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := r.letters(ctx, f); err != nil {
		return nil, err
	}
	left := map[int64]bool{}
	err = Each(ctx, r.db, "SELECT n FROM beats", func(scan func(...any) error) error {
		var n int64
		err := scan(&n)
		left[n] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	f.losses = r.heart.losses(left, r.clock())
	f.Incidents, f.Ended, f.told, f.acked = r.incidents, r.gone, r.told, r.acked
	for _, i := range r.instances {
		log, err := os.ReadFile(filepath.Clean(i.process.log))
		if err != nil {
			return nil, err
		}
		Heed(&f.Evidence, i.process.PID(), log, i.ahead-r.offset)
	}
	return f, nil
}
