package whole

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// process is one that runs all there is: units of work, a relay, a subscription.
type process struct {
	w      *world
	number int
	sent   map[string]int // requests, by kind

	provider *provider
	units    *uow.Manager
	accounts *repository.Repository[*Account]
	tallies  *repository.Repository[*Tally]
	relay    *relay.Relay
	runner   *subscription.Runner
	alarms   *repository.Repository[*Alarm]
	tours    *repository.Repository[*Trip]
	bills    *repository.Repository[*Bill]
	others   []*subscription.Runner // of commands and processes
	promoter *timerdb.Promoter
	promotes sync.WaitGroup
	demote   context.CancelFunc
	chance   *rand.Rand

	dead             chan struct{} // closed: it was killed
	killed, stopping bool
	hangs            bool          // nothing that it asks is answered
	up, ended        chan struct{} // closed: it has started; nothing of it runs any more
	life             context.Context
	end              context.CancelFunc
}

// start starts a process.
func (w *world) start() {
	p := &process{
		w: w, number: len(w.procs) + 1, sent: map[string]int{}, chance: rand.New(rand.NewPCG(w.plan.seed, 100+uint64(len(w.procs)))),
		dead: make(chan struct{}), up: make(chan struct{}), ended: make(chan struct{}),
	}
	p.life, p.end = context.WithCancel(context.Background())
	if err := p.build(); err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	go func() {
		defer close(p.up)
		p.persist(func() error { return p.relay.Start(p.life) })
		p.persist(func() error { return p.runner.Start(p.life) })
		for _, r := range p.others {
			p.persist(func() error { return r.Start(p.life) })
		}
	}()
}

// persist starts something, also if the database doesn't answer at first.
func (p *process) persist(begin func() error) {
	for begin() != nil && p.life.Err() == nil {
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a bubble
	}
}

// build makes what a process has, as the engine does.
func (p *process) build() (err error) {
	quiet := slog.New(slog.DiscardHandler)
	p.provider = newProvider(p)
	if p.units, err = uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p.provider}, Logger: quiet}); err != nil {
		return err
	}
	p.accounts, p.tallies, p.alarms = repository.New[*Account](p.units), repository.New[*Tally](p.units), repository.New[*Alarm](p.units)
	p.tours, p.bills = repository.New[*Trip](p.units), repository.New[*Bill](p.units)
	p.relay, err = relay.New(relay.Config{
		Provider: p.provider.Name(), Store: outboxdb.New(p.provider.db, p.provider.reader), Lanes: []relay.Lane{{Target: "default", Broker: bus{p.w, p}}},
		Outbox: p.w.plan.outbox(), Logger: quiet, Random: func() float64 {
			p.w.mu.Lock()
			defer p.w.mu.Unlock()
			return p.chance.Float64()
		},
	})
	if err != nil {
		return err
	}
	p.units.OnCommit(func(_ string, pokes []outbox.Poke) []outbox.Poke { return p.relay.Wake(pokes) })
	p.runner, err = subscription.NewRunner(subscription.RunnerConfig{Stream: p.stream(), Broker: bus{p.w, p}, Logger: quiet})
	if err != nil || !p.w.plan.timers {
		return err
	}
	return p.time(quiet)
}

// time makes what handles commands, and sends timers.
func (p *process) time(quiet *slog.Logger) error {
	handlers, err := p.handlers()
	if err != nil {
		return err
	}
	stream, _ := handlers.Stream()
	commands, err := subscription.NewRunner(subscription.RunnerConfig{Stream: stream, Broker: bus{p.w, p}, Logger: quiet})
	if err != nil {
		return err
	}
	p.others = append(p.others, commands)
	if p.w.plan.journeys {
		runners, err := p.journeyRunners(quiet)
		if err != nil {
			return err
		}
		p.others = append(p.others, runners...)
	}
	p.promoter = timerdb.NewPromoter(timerdb.New(p.provider.db, p.provider.reader), time.Second, func(pokes []outbox.Poke) { p.relay.Wake(pokes) }, nil, quiet)
	p.units.OnTimer(func(_ string, at time.Time) { p.promoter.Set(at) })
	ctx, cancel := context.WithCancel(p.life)
	p.demote = cancel
	p.promotes.Go(func() { p.promoter.Run(ctx) })
	return nil
}

// stop has a process come to its end by itself.
func (p *process) stop() {
	p.w.mu.Lock()
	p.stopping = true
	p.w.mu.Unlock()
	go p.halt()
}

// halt ends a process: hard, if it was killed.
func (p *process) halt() {
	<-p.up
	if p.promoter != nil {
		p.demote()
		p.promotes.Wait()
	}
	for _, r := range p.others {
		_ = r.Stop(p.life)
	}
	_ = p.runner.Stop(p.life)
	_ = p.relay.Stop(p.life)
	p.end()
	close(p.ended)
}

func (p *process) String() string { return fmt.Sprint("process ", p.number) }
