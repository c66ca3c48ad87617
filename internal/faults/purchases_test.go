package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Two contexts and a process between them: an order is charged for, or cancelled and
// what was paid is given back. A bank takes its time, by a timer of its own; who pays
// too late has a race with the timer of the process.
type (
	order struct {
		domain.Root
		Status string
	}
	placed struct {
		OrderID string `json:"order_id"`
		Cents   int    `json:"cents"`
		Pays    string `json:"pays"`
		PayBy   int    `json:"pay_by"` // ms from then
	}
	closed struct {
		OrderID string `json:"order_id"`
	}
	completeOrder struct {
		OrderID string `json:"order_id"`
	}
	cancelOrder struct {
		OrderID string `json:"order_id"`
		Why     string `json:"why"`
	}

	charge struct {
		domain.Root
		Cents  int
		Status string
		Rang   bool // after its stop had committed
	}
	chargeOrder struct {
		OrderID string `json:"order_id"`
		Cents   int    `json:"cents"`
		Pays    string `json:"pays"`
		PayBy   int    `json:"pay_by"`
	}
	settleCharge struct {
		OrderID string `json:"order_id"`
	}
	refundOrder struct {
		OrderID string `json:"order_id"`
	}
	charged struct {
		OrderID string `json:"order_id"`
		Cents   int    `json:"cents"`
	}
)

// How somebody pays.
var payments = []string{"at once", "late", "never", "refused"}

type purchase struct {
	domain.ProcessRoot
	Status string
}

func (p *purchase) Placed(e placed) error {
	p.Status = "placed"
	p.Send(chargeOrder(e))
	p.SetTimer("pay-by", p.Now().Add(time.Duration(e.PayBy)*time.Millisecond))
	return nil
}

func (p *purchase) Charged(charged) error {
	p.Status = "charged"
	p.Send(completeOrder{p.ID()})
	p.End()
	return nil
}

func (p *purchase) Refused(domain.Refusal[chargeOrder]) error {
	p.Status = "refused"
	p.Send(cancelOrder{p.ID(), "refused"})
	p.End()
	return nil
}

func (p *purchase) Late() error {
	p.Status = "late"
	p.Send(refundOrder{p.ID()})
	p.Send(cancelOrder{p.ID(), "late"})
	p.End()
	return nil
}

var shop = domain.MustNew("shop",
	domain.Aggregate[*order]("order", domain.Event[placed](domain.Named("Placed")), domain.Event[closed](domain.Named("Closed"))),
	domain.Command[completeOrder](domain.KeyedBy("order_id")),
	domain.Command[cancelOrder](domain.KeyedBy("order_id")),
	domain.ForeignCommand[chargeOrder]("bank", "Bank.chargeOrder.v1", domain.KeyedBy("order_id")),
	domain.ForeignCommand[refundOrder]("bank", "Bank.refundOrder.v1", domain.KeyedBy("order_id")),
	domain.Foreign[charged]("Bank.Charged.v1", domain.From("bank::charge")),
	domain.Process[*purchase]("purchase",
		domain.CorrelatedBy("order_id"),
		domain.Starts((*purchase).Placed),
		domain.Hears((*purchase).Charged),
		domain.Hears((*purchase).Refused),
		domain.OnTimer("pay-by", (*purchase).Late),
	),
)

type bankCharged charged

var bank = domain.MustNew("bank",
	domain.Aggregate[*charge]("charge", domain.Event[bankCharged](domain.Named("Charged"), domain.Published())),
	domain.Command[chargeOrder](domain.KeyedBy("order_id"), domain.FromOthers()),
	domain.Command[refundOrder](domain.KeyedBy("order_id"), domain.FromOthers()),
	domain.Command[settleCharge](domain.KeyedBy("order_id")),
)

func (o *order) close(status string) error {
	if o.Status != "placed" {
		return fmt.Errorf("the order is %s already, and can't be %s", o.Status, status)
	}
	o.Status = status
	o.Raise(closed{o.ID()})
	return nil
}

// noteMove notes what was moved: a move that happens twice stands there twice.
func noteMove(ctx context.Context, id string, cents int) error {
	return uow.Exec(ctx, "INSERT INTO ledger (order_id, cents) VALUES (?, ?)", id, cents)
}

// purchases are both contexts on one database.
type purchases struct {
	units, banked *uow.Manager
	orders        *repository.Repository[*order]
	charges       *repository.Repository[*charge]
	contexts      []engine.Context
}

func newPurchases(p uow.Provider) (*purchases, error) {
	units, err := uow.New(uow.Config{Domain: shop, Providers: []uow.Provider{p}})
	if err != nil {
		return nil, err
	}
	banked, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{p}})
	if err != nil {
		return nil, err
	}
	s := &purchases{units: units, banked: banked, orders: repository.New[*order](units), charges: repository.New[*charge](banked)}
	sells, err := command.New(command.Config{Units: units, Handlers: []command.Handler{
		command.Update(s.orders, func(o *order, _ completeOrder) error { return o.close("complete") }),
		command.Update(s.orders, func(o *order, c cancelOrder) error { return o.close(c.Why) }),
	}})
	if err != nil {
		return nil, err
	}
	pays, err := command.New(command.Config{Units: banked, Handlers: []command.Handler{
		command.On(s.charge), command.On(s.settle), command.On(s.refund),
	}})
	s.contexts = []engine.Context{{Units: units, Commands: sells}, {Units: banked, Commands: pays}}
	return s, err
}

func (s *purchases) charge(ctx context.Context, c chargeOrder) error {
	if c.Pays == "refused" {
		return command.Refuse(errors.New("no credit"))
	}
	a := &charge{Root: domain.RootWithID(c.OrderID), Cents: c.Cents, Status: "pending"}
	switch c.Pays {
	case "at once":
		if err := s.pay(ctx, a); err != nil {
			return err
		}
	case "late": // at about the time when the process gives up
		by := time.Duration(c.PayBy) * time.Millisecond
		domain.SetTimer(a, "settle", domain.Now(ctx).Add(by+time.Duration(rand.Int64N(int64(200*time.Millisecond)))-100*time.Millisecond), settleCharge{c.OrderID})
	}
	return s.charges.Save(ctx, a)
}

func (s *purchases) pay(ctx context.Context, a *charge) error {
	a.Status = "paid"
	a.Raise(bankCharged{a.ID(), a.Cents})
	return noteMove(ctx, a.ID(), a.Cents)
}

func (s *purchases) settle(ctx context.Context, c settleCharge) error {
	return s.charges.Update(ctx, c.OrderID, func(a *charge) error {
		if a.Status != "pending" {
			a.Rang = true
			return nil
		}
		return s.pay(ctx, a)
	})
}

func (s *purchases) refund(ctx context.Context, c refundOrder) error {
	err := s.charges.Update(ctx, c.OrderID, func(a *charge) error {
		domain.StopTimer(a, "settle")
		if a.Status == "paid" {
			a.Status = "refunded"
			return noteMove(ctx, a.ID(), -a.Cents)
		}
		a.Status = "void"
		return nil
	})
	if _, refused := errors.AsType[*repository.NotFoundError](err); refused {
		return nil
	}
	return err
}

// purchases is a node that runs both contexts.
func (n *node) purchases(ctx context.Context, p uow.Provider) error {
	s, err := newPurchases(p)
	if err != nil {
		return err
	}
	return n.host(ctx, s.contexts, func(context.Context) error { return nil })
}

// host runs contexts, and work beside them.
func (n *node) host(ctx context.Context, contexts []engine.Context, work func(ctx context.Context) error) (err error) {
	k, err := kafka.Open(ctx, kafka.Config{
		Addresses: strings.Split(n.cfg.Kafka, ","), Logger: n.log, SessionTimeout: 6 * time.Second, // Brokers take no less; a group shall go on between two kills.
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = errors.Join(err, k.Close(ctx))
	}()
	eng, err := engine.New(engine.Config{
		Contexts: contexts, Outbox: n.cfg.Outbox, Logger: n.log,
		Brokers: map[string]broker.Broker{"default": broker.Prefixed(k, n.cfg.Prefix)},
	})
	if err != nil {
		return err
	}
	if err := eng.Start(ctx); err != nil {
		return err
	}
	n.say("running")
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	return errors.Join(eng.Run(ctx), <-done)
}

// Processes with timers, whose engines are killed again and again. Every process ends in
// one of its legal ends, money adds up, and no timer rings after its stop has committed.
func TestPurchases_KilledOverAndOver(t *testing.T) {
	t.Parallel()
	number, shortest, longest, between, most := 150, 300*time.Millisecond, 4*time.Second, 3*time.Second, 2
	if long() {
		number, shortest, longest, between, most = 10_000, time.Second, 20*time.Second, 6*time.Second, 90
	}
	w := newWorld(t, 1)
	s, err := newPurchases(w.units.Providers()[0])
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), s.units, s.banked))
	_, err = w.db.Exec("CREATE TABLE ledger (order_id text, cents bigint)")
	require.NoError(t, err)
	for _, topic := range []string{"shop.order", "shop.commands", "shop.processes", "bank.charge", "bank.commands"} {
		w.createTopic(topic, 1<<20)
	}
	engines := make([]*process, 3)
	for i := range engines {
		engines[i] = w.purchases()
	}
	ended := func() int { return w.count("processes WHERE status = 'ended'") }
	began := time.Now()
	kills, next := 0, began.Add(between)
	tick := time.NewTicker(between / 30)
	defer tick.Stop()
	kill := func() {
		<-tick.C
		if kills == most || time.Now().Before(next) {
			return
		}
		i := rand.IntN(len(engines))
		engines[i].Kill()
		engines[i] = w.purchases()
		kills++
		next = next.Add(between)
	}
	for i := 0; i < number; {
		require.NoError(t, s.units.Do(t.Context(), func(ctx context.Context) error {
			for range min(20, number-i) {
				o := &order{Root: domain.RootWithID(fmt.Sprint("o", i)), Status: "placed"}
				by, pays := shortest+time.Duration(rand.Int64N(int64(longest-shortest))), payments[i%len(payments)]
				if i < 40 && (pays == "at once" || pays == "refused") {
					by = time.Hour // However long a kill delays the answer, it comes before the process gives up.
				}
				o.Raise(placed{o.ID(), 100 + i, pays, int(by.Milliseconds())})
				if err := s.orders.Save(ctx, o); err != nil {
					return err
				}
				i++
			}
			return nil
		}))
		kill()
	}
	deadline := time.Now().Add(15 * time.Minute)
	for ended() < number {
		require.Truef(t, time.Now().Before(deadline), "%d of %d processes have ended", ended(), number)
		kill()
	}
	w.t.Logf("%d processes, %d kills, ended after %v", number, kills, time.Since(began))
	open := "documents WHERE category = 'shop::order' AND state ->> 'Status' = 'placed'"
	eventually(t, func() bool { return w.count(open) == 0 && w.count("timers") == 0 && w.waiting() == 0 }, "every order is complete or cancelled, and nothing waits: %v", says(func() string {
		return fmt.Sprintf("open orders %v, timers %v, rows %v, letters %v; %v", w.strings("SELECT id FROM "+open), w.strings("SELECT (to_jsonb(t) - 'message' - 'payload')::text FROM timers t"),
			w.strings("SELECT to_jsonb(o)::text FROM outbox o WHERE status <> 'published'"), w.strings("SELECT to_jsonb(d)::text FROM dead_letters d"), w.whereabouts("SELECT id FROM "+open))
	}))
	require.Zero(t, w.count("dead_letters WHERE status NOT IN ('replayed')"))
	require.Positive(t, kills)

	// Each end becomes a legal one, and what was moved is what the order says. What is published may
	// not be handled yet: a consumer of a process that was killed hands over in seconds.
	illegal := func() []string {
		return w.strings(`SELECT format('%s: order %s, charge %s, process %s, ledger %s', o.id, o.state ->> 'Status', c.state ->> 'Status', p.state ->> 'Status', l.moved)
		FROM documents o LEFT JOIN documents c ON c.category = 'bank::charge' AND c.id = o.id JOIN processes p ON p.id = o.id
		LEFT JOIN (SELECT order_id, string_agg(cents::text, ' ' ORDER BY cents) AS moved FROM ledger GROUP BY 1) l ON l.order_id = o.id
		WHERE o.category = 'shop::order' AND (o.state ->> 'Status', COALESCE(c.state ->> 'Status', ''), p.state ->> 'Status', COALESCE(l.moved, '')) NOT IN (
			VALUES ('complete', 'paid', 'charged', (100 + substr(o.id, 2)::int)::text), ('refused', '', 'refused', ''), ('late', '', 'late', ''), ('late', 'void', 'late', ''),
				('late', 'refunded', 'late', format('-%s %s', 100 + substr(o.id, 2)::int, 100 + substr(o.id, 2)::int)))`)
	}
	eventually(t, func() bool { return len(illegal()) == 0 }, "every end is a legal one: %v", says(func() string { return fmt.Sprint(illegal()) }))
	require.Empty(t, w.strings("SELECT id FROM documents WHERE category = 'bank::charge' AND (state ->> 'Rang')::boolean"), "a timer rang after its stop had committed")
	require.Zero(t, w.count("processes WHERE version <> 2"), "each heard what began it and what ended it")
	for _, status := range []string{"charged", "refused", "late"} {
		require.Positive(t, w.count("processes WHERE state ->> 'Status' = $1", status), status)
	}
}

// whereabouts are what became of the messages of keys that a query has: in the outbox, in Kafka and
// in the inbox; and how far each group is.
func (w *world) whereabouts(keys string) string {
	var text strings.Builder
	stored := map[string][]string{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, unread := chaos.Delivered(ctx, w.connection, w.prefix)
	for _, d := range all {
		stored[d.ID] = append(stored[d.ID], fmt.Sprintf("%+v", d))
	}
	for _, id := range w.strings("SELECT message_id::text FROM outbox WHERE partition_key IN (" + keys + ") ORDER BY seq") {
		fmt.Fprintf(&text, "\n%v in Kafka: %v, in the inbox: %v", w.strings("SELECT concat_ws(' ', seq, message_type, message_id, status, published_at) FROM outbox WHERE message_id = '"+id+"'"),
			stored[id], w.strings("SELECT to_jsonb(i)::text FROM inbox i WHERE message_id::text = '"+id+"'"))
	}
	lags, err := w.admin().Lag(ctx)
	fmt.Fprintf(&text, "\n%v", errors.Join(unread, err))
	for _, group := range lags.Sorted() {
		for topic, partitions := range group.Lag {
			if strings.HasPrefix(topic, w.prefix) {
				for _, at := range partitions {
					fmt.Fprintf(&text, "\n%s %s/%d: committed %d, end %d", group.Group, topic, at.Partition, at.Commit.At, at.End.Offset)
				}
			}
		}
	}
	return text.String()
}

func (w *world) purchases() *process {
	w.t.Helper()
	return w.run("purchases", w.config(func(c *nodeConfig) {
		c.Role, c.Outbox = "purchases", outbox.Config{Lease: 3 * time.Second}
	}))
}

// says is a text that is made when it is needed.
type says func() string

func (s says) String() string { return s() }
