package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/subscription/dedup"
	"github.com/waybill-go/waybill/subscription/dedup/deduptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errCut = errors.New("cut")

// ports are the stores and the broker; fault is asked before and after each call.
type ports struct {
	*deduptest.Memory
	sent  *memory.Broker
	fault func(step string) error // Makes it one worker's.
	known bool                    // The id is among the processed.
}

func newPorts(t *testing.T) *ports {
	t.Helper()
	p := &ports{Memory: &deduptest.Memory{}, sent: memory.New(memory.Config{NoPrefix: true})}
	require.NoError(t, p.sent.EnsureTopics(t.Context(), "confirmations"))
	t.Cleanup(func() { require.NoError(t, p.sent.Close(context.Background())) })
	return p
}

// with are the same stores for one worker, with faults of its own.
func (p *ports) with(fault func(step string) error) *ports {
	return &ports{Memory: p.Memory, sent: p.sent, fault: fault}
}

func (p *ports) around(step string, do func() error) error {
	if p.fault == nil {
		return do()
	}
	p.known = step == "add" || step == "remove"
	if err := p.fault("before " + step); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return p.fault("after " + step)
}

func (p *ports) Get(ctx context.Context, key string) (value []byte, revision string, err error) {
	err = p.around("get", func() (err error) { value, revision, err = p.Memory.Get(ctx, key); return })
	return value, revision, err
}

func (p *ports) Swap(ctx context.Context, key string, value []byte, revision string) (next string, err error) {
	step := "save"
	if p.known {
		step = "remove"
	}
	err = p.around(step, func() (err error) { next, err = p.Memory.Swap(ctx, key, value, revision); return })
	return next, err
}

func (p *ports) Has(ctx context.Context, id string) (has bool, err error) {
	err = p.around("has", func() (err error) { has, err = p.Memory.Has(ctx, id); return })
	if p.fault != nil {
		p.known = has
	}
	return has, err
}

func (p *ports) Add(ctx context.Context, id string) error {
	return p.around("add", func() error { return p.Memory.Add(ctx, id) })
}

func (p *ports) Publish(ctx context.Context, messages []broker.Message) error {
	return p.around("publish", func() error { return p.sent.Publish(ctx, messages) })
}

// steps are those of a message, in order.
var steps = []string{"get", "has", "save", "publish", "add", "remove"}

// at cuts once, at a step.
func at(step string) func(string) error {
	var once sync.Once
	return func(now string) (err error) {
		if now == step {
			once.Do(func() { err = errCut })
		}
		return err
	}
}

type card struct {
	Debited  int
	Payments int
}

type counts struct {
	mu    sync.Mutex
	calls int
}

// debit confirms with an id and a code that are others each time.
func (c *counts) debit(_ context.Context, card *card, m broker.Message) ([]broker.Message, error) {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	card.Debited += len(m.Body)
	card.Payments++
	return []broker.Message{
		{ID: "of " + m.ID, Topic: "confirmations", Key: "card", Headers: map[string]string{"payment": m.ID}, Body: []byte(uuid.NewString())},
		{Topic: "confirmations", Key: "card", Headers: map[string]string{"payment": m.ID}, Body: []byte(uuid.NewString())},
	}, nil
}

func handler(t *testing.T, p *ports, c *counts, change ...func(*dedup.Config[card])) *dedup.Handler[card] {
	t.Helper()
	config := dedup.Config[card]{Name: "cards", Documents: p, Processed: p, Publisher: p, Apply: c.debit}
	for _, f := range change {
		f(&config)
	}
	h, err := dedup.New(config)
	require.NoError(t, err)
	return h
}

func payment(n int) broker.Message {
	return broker.Message{ID: fmt.Sprintf("payment-%d", n), Topic: "payments", Key: "card", Body: []byte("xxx")}
}

// document is what is stored of the card, "" if nothing is.
func (p *ports) document(t *testing.T) string {
	t.Helper()
	value, _, err := p.Memory.Get(t.Context(), "card")
	require.NoError(t, err)
	return string(value)
}

func (p *ports) processed(t *testing.T, m broker.Message) bool {
	t.Helper()
	has, err := p.Memory.Has(t.Context(), "cards/"+m.ID)
	require.NoError(t, err)
	return has
}

// requireOnce checks that each output has one id and one body, and returns how
// many there are, copies not counted.
func (p *ports) requireOnce(t *testing.T) int {
	t.Helper()
	bodies := map[string]string{}
	for _, m := range p.sent.Messages("confirmations") {
		if body, ok := bodies[m.ID]; ok {
			require.Equal(t, body, string(m.Body), "an id with two bodies")
		}
		bodies[m.ID] = string(m.Body)
	}
	return len(bodies)
}

const done = `{"format":1,"state":{"Debited":3,"Payments":1},"outbox":{}}`

// Conformance: C-36.
func TestHandle_S0_01_AllOrNothing(t *testing.T) {
	p, c := newPorts(t), &counts{}
	var seen string
	cut := p.with(func(step string) error {
		if step == "after save" {
			seen = p.document(t)
			return errCut
		}
		return nil
	})
	require.ErrorIs(t, handler(t, cut, c).Handle(t.Context(), payment(1)), errCut)
	require.Equal(t, seen, p.document(t))
	require.Contains(t, seen, `"state":{"Debited":3,"Payments":1}`)
	require.Contains(t, seen, `"cards/payment-1":[{"id":"of payment-1"`)

	broken := errors.New("no money")
	for name, apply := range map[string]func(context.Context, *card, broker.Message) ([]broker.Message, error){
		"error": func(_ context.Context, c *card, _ broker.Message) ([]broker.Message, error) {
			c.Debited = 99
			return []broker.Message{{Topic: "confirmations", Key: "k"}}, broken
		},
		"panic": func(_ context.Context, c *card, _ broker.Message) ([]broker.Message, error) {
			c.Debited = 99
			panic(broken)
		},
		"no topic": func(context.Context, *card, broker.Message) ([]broker.Message, error) {
			return []broker.Message{{Key: "k"}}, nil
		},
		"no key": func(context.Context, *card, broker.Message) ([]broker.Message, error) {
			return []broker.Message{{Topic: "confirmations"}}, nil
		},
		"one id twice": func(context.Context, *card, broker.Message) ([]broker.Message, error) {
			m := broker.Message{ID: "x", Topic: "confirmations", Key: "k"}
			return []broker.Message{m, m}, nil
		},
		"header of bytes": func(context.Context, *card, broker.Message) ([]broker.Message, error) {
			return []broker.Message{{Topic: "confirmations", Key: "k", Headers: map[string]string{"a": "\xff"}}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPorts(t)
			err := handler(t, p, c, func(cfg *dedup.Config[card]) { cfg.Apply = apply }).Handle(t.Context(), payment(1))
			require.ErrorContains(t, err, "cards: message payment-1 of entity card: apply")
			require.Empty(t, p.document(t))
			require.False(t, p.processed(t, payment(1)))
			require.Empty(t, p.sent.Messages("confirmations"))
		})
	}
	for _, step := range []string{"before get", "after get", "before has", "after has", "before save"} {
		t.Run(step, func(t *testing.T) {
			p := newPorts(t)
			require.ErrorIs(t, handler(t, p.with(at(step)), c).Handle(t.Context(), payment(1)), errCut)
			require.Empty(t, p.document(t))
			require.Empty(t, p.sent.Messages("confirmations"))
		})
	}
}

// S0-02, S0-05: what was saved is published as it was, and Apply isn't called.
func TestHandle_S0_02_S0_05_CrashBetweenSaveAndPublish(t *testing.T) {
	p, c := newPorts(t), &counts{}
	var first []broker.Message
	remember := func(cfg *dedup.Config[card]) {
		cfg.Apply = func(ctx context.Context, card *card, m broker.Message) ([]broker.Message, error) {
			out, err := c.debit(ctx, card, m)
			first = out
			return out, err
		}
	}
	require.ErrorIs(t, handler(t, p.with(at("before publish")), c, remember).Handle(t.Context(), payment(1)), errCut)
	require.Empty(t, p.sent.Messages("confirmations"))
	require.NoError(t, handler(t, p, c).Handle(t.Context(), payment(1)))
	require.Equal(t, 1, c.calls)
	got := p.sent.Messages("confirmations")
	require.Len(t, got, 2)
	require.Equal(t, first[0], got[0])
	require.NotEmpty(t, got[1].ID)
	require.Equal(t, first[1].Body, got[1].Body)

	again := newPorts(t)
	require.ErrorIs(t, handler(t, again.with(at("before add")), c).Handle(t.Context(), payment(1)), errCut)
	require.NoError(t, handler(t, again, c).Handle(t.Context(), payment(1)))
	copies := again.sent.Messages("confirmations")
	require.Len(t, copies, 4)
	require.Equal(t, copies[:2], copies[2:])
}

func TestHandle_S0_03_S0_04_S0_09_Duplicate(t *testing.T) {
	p, c := newPorts(t), &counts{}
	h := handler(t, p, c)
	require.NoError(t, h.Handle(t.Context(), payment(1)))
	require.JSONEq(t, done, p.document(t), "payloads are gone")
	require.True(t, p.processed(t, payment(1)))
	for range 3 {
		require.NoError(t, h.Handle(t.Context(), payment(1)))
	}
	require.Equal(t, 1, c.calls)
	require.Len(t, p.sent.Messages("confirmations"), 2)
	require.JSONEq(t, done, p.document(t))

	// Two handlers share the stores, and the entity.
	other := handler(t, p, c, func(cfg *dedup.Config[card]) { cfg.Name = "fraud" })
	require.NoError(t, other.Handle(t.Context(), payment(1)))
	require.Equal(t, 2, c.calls)
}

func TestHandle_S0_06_DocumentDoesNotGrow(t *testing.T) {
	p, c := newPorts(t), &counts{}
	h := handler(t, p, c)
	for n := range 500 {
		require.NoError(t, h.Handle(t.Context(), payment(n)))
	}
	require.Less(t, len(p.document(t)), 100)

	// Neither by those whose worker died before the last step.
	for n := range 50 {
		require.Error(t, handler(t, p.with(at("before remove")), c).Handle(t.Context(), payment(1000+n)))
	}
	require.Contains(t, p.document(t), "payment-1049")
	for n := range 50 {
		require.NoError(t, h.Handle(t.Context(), payment(1000+n)))
	}
	require.Less(t, len(p.document(t)), 100)
	require.Equal(t, 550, c.calls)
}

// S0-08, S0-07: as long as the id isn't among the processed, the entity knows.
func TestHandle_S0_08_S0_07_NotRemovedBeforeItIsAdded(t *testing.T) {
	p, c := newPorts(t), &counts{}
	stuck := p.with(func(step string) error {
		if step == "before add" {
			return errCut
		}
		return nil
	})
	for range 3 {
		require.ErrorIs(t, handler(t, stuck, c).Handle(t.Context(), payment(1)), errCut)
		require.Contains(t, p.document(t), `"cards/payment-1":[`)
		require.False(t, p.processed(t, payment(1)))
	}
	require.NoError(t, handler(t, p, c).Handle(t.Context(), payment(1)))
	require.JSONEq(t, done, p.document(t))
	require.Equal(t, 1, c.calls)
}

// S0-10: worker 1 rests before it adds the id; worker 2 is told no, and rests;
// worker 1 goes on and removes; worker 2 goes on.
func TestHandle_S0_10_ChargedTwice(t *testing.T) {
	for _, rests := range []string{"after get", "after has", "before save"} {
		t.Run(rests, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, c := newPorts(t), &counts{}
				block := func(step string) (resting *ports, goOn chan struct{}) {
					goOn = make(chan struct{})
					var once sync.Once
					return p.with(func(now string) error {
						if now == step {
							once.Do(func() { <-goOn })
						}
						return nil
					}), goOn
				}
				first, firstGoes := block("before add")
				second, secondGoes := block(rests)
				errs := make(chan error, 2)
				one, two := handler(t, first, c), handler(t, second, c)
				go func() { errs <- two.Handle(t.Context(), payment(1)) }()
				synctest.Wait()
				go func() { errs <- one.Handle(t.Context(), payment(1)) }()
				synctest.Wait()
				close(firstGoes)
				require.NoError(t, <-errs)
				close(secondGoes)
				require.NoError(t, <-errs)
				require.JSONEq(t, done, p.document(t))
				require.Equal(t, 2, p.requireOnce(t))
			})
		})
	}
}

// S0-12: whoever loaded what is out of date saves nothing.
func TestHandle_S0_12_Conflict(t *testing.T) {
	p, c := newPorts(t), &counts{}
	once := func(cfg *dedup.Config[card]) { cfg.Attempts = 1 }
	var first sync.Once
	overtaken := p.with(func(step string) error {
		if step == "before save" {
			first.Do(func() { require.NoError(t, handler(t, p, c).Handle(t.Context(), payment(1))) })
		}
		return nil
	})
	h := handler(t, overtaken, c, once)
	require.ErrorIs(t, h.Handle(t.Context(), payment(1)), dedup.ErrConflict, "it returns to the queue")
	require.Equal(t, 2, c.calls)
	require.NoError(t, h.Handle(t.Context(), payment(1)))
	require.Equal(t, 2, c.calls, "found among the processed")
	require.JSONEq(t, done, p.document(t))
	require.Len(t, p.sent.Messages("confirmations"), 2)
}

// A document that always changes costs so many attempts, and no more.
// Conformance: S0-12.
func TestHandle_ConflictStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newPorts(t), &counts{}
		n := 0
		storm := p.with(func(step string) error {
			if step == "before save" {
				n++
				require.NoError(t, handler(t, p, &counts{}).Handle(t.Context(), payment(n)))
			}
			return nil
		})
		require.ErrorIs(t, handler(t, storm, c).Handle(t.Context(), payment(0)), dedup.ErrConflict)
		require.Equal(t, 5, c.calls)
		require.NotContains(t, p.document(t), "payment-0")

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		h := handler(t, storm, c, func(cfg *dedup.Config[card]) { cfg.Attempts = 1 << 30 })
		require.Error(t, h.Handle(ctx, payment(0)), "ctx ends it")
	})
}

// Workers die at each step, before and after it, alone or with another at work,
// with one to three copies.
func TestHandle_S0_13_CrashAtEachStep(t *testing.T) {
	for _, step := range steps {
		for _, moment := range []string{"before ", "after "} {
			for _, workers := range []int{1, 2} {
				for copies := 1; copies <= 3; copies++ {
					name := fmt.Sprintf("%s%s, %d workers, %d copies", moment, step, workers, copies)
					t.Run(name, func(t *testing.T) {
						p, c := newPorts(t), &counts{}
						queue := make(chan broker.Message, copies+2*workers)
						for range copies {
							queue <- payment(1)
						}
						var running, left sync.WaitGroup
						left.Add(copies)
						for range workers {
							h := handler(t, p.with(at(moment+step)), c) // Each dies once.
							running.Go(func() {
								for m := range queue {
									if h.Handle(context.Background(), m) != nil {
										queue <- m
										continue
									}
									left.Done()
								}
							})
						}
						left.Wait()
						close(queue)
						running.Wait()
						require.JSONEq(t, done, p.document(t))
						require.Equal(t, 2, p.requireOnce(t))
					})
				}
			}
		}
	}
}

// S0-14: of two first messages one makes the entity, and the other sees it.
func TestHandle_S0_14_TwoFirstMessages(t *testing.T) {
	p, c := newPorts(t), &counts{}
	var both sync.WaitGroup
	both.Add(2)
	var running sync.WaitGroup
	for n := range 2 {
		var once sync.Once
		together := p.with(func(step string) error {
			if step == "after has" {
				once.Do(func() { both.Done(); both.Wait() })
			}
			return nil
		})
		h := handler(t, together, c)
		running.Go(func() { require.NoError(t, h.Handle(context.Background(), payment(n))) })
	}
	running.Wait()
	require.JSONEq(t, `{"format":1,"state":{"Debited":6,"Payments":2},"outbox":{}}`, p.document(t))
	require.Equal(t, 3, c.calls)
}

// S0-17: what was saved comes back as it was.
func TestHandle_S0_17_OutgoingMessagesAreKept(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	out := []broker.Message{
		{ID: "1", Topic: "confirmations", Key: "a", Headers: map[string]string{"ünï": "☂ <&>\u2028\x00\"", "empty": ""}, Body: all},
		{ID: "2", Topic: "confirmations", Key: "b", Body: nil},
		{ID: "3", Topic: "confirmations", Key: "b", Headers: map[string]string{}, Body: []byte{}},
		{ID: "4 ☂", Topic: "confirmations", Key: "b", CloudEvent: map[string]string{"subject": "größe"}, Body: []byte(`{"n": 1e400}`)},
	}
	p, c := newPorts(t), &counts{}
	var again []broker.Message
	receive := publisher(func(messages []broker.Message) error {
		keys := map[string]bool{}
		for _, m := range messages {
			require.False(t, keys[m.Key], "one of a key in a call")
			keys[m.Key] = true
		}
		again = append(again, messages...)
		return nil
	})
	change := func(cfg *dedup.Config[card]) {
		cfg.Publisher = receive
		cfg.Apply = func(context.Context, *card, broker.Message) ([]broker.Message, error) { return out, nil }
	}
	require.ErrorIs(t, handler(t, p.with(at("before add")), c, change).Handle(t.Context(), payment(1)), errCut)
	require.Equal(t, out, again)
	again = nil
	require.NoError(t, handler(t, p, c, change).Handle(t.Context(), payment(1)))
	require.Equal(t, out, again, "from the store")
}

type publisher func([]broker.Message) error

func (f publisher) Publish(_ context.Context, messages []broker.Message) error { return f(messages) }

// S0-18: what it led to is published on its own; that the acknowledgement of the
// message was lost doesn't take it back, or publish anything else.
func TestHandle_S0_18_AcknowledgementLost(t *testing.T) {
	in := memory.New(memory.Config{})
	require.NoError(t, in.EnsureTopics(t.Context(), "payments"))
	require.NoError(t, in.Publish(t.Context(), []broker.Message{payment(1)}))
	p, c := newPorts(t), &counts{}
	h := handler(t, p, c)
	for range 2 {
		consumer, err := in.Consume(t.Context(), "payments", "cards")
		require.NoError(t, err)
		got, err := consumer.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, h.Handle(t.Context(), got[0].Message))
		require.NoError(t, consumer.Close(t.Context()), "without an acknowledgement")
	}
	require.NoError(t, in.Close(t.Context()))
	require.Equal(t, 1, c.calls)
	require.Len(t, p.sent.Messages("confirmations"), 2)
}

// S0-21: what has no id, or no entity, is refused, and shares nothing.
func TestHandle_S0_21_WithoutIdentity(t *testing.T) {
	p, c := newPorts(t), &counts{}
	h := handler(t, p, c)
	for m, want := range map[*broker.Message]string{
		{Topic: "payments", Key: "card"}:             "its id is empty",
		{Topic: "payments", ID: "1"}:                 "the key of its entity is empty",
		{Topic: "payments", ID: "\xff", Key: "card"}: "not UTF-8",
	} {
		err := h.Handle(t.Context(), *m)
		require.ErrorIs(t, err, dedup.ErrUnidentified)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `topic "payments"`)
	}
	none := errors.New("no correlation id")
	h = handler(t, p, c, func(cfg *dedup.Config[card]) {
		cfg.Identify = func(broker.Message) (dedup.Identity, error) { return dedup.Identity{ID: "1", Entity: "card"}, none }
	})
	err := h.Handle(t.Context(), payment(1))
	require.ErrorIs(t, err, none)
	require.ErrorIs(t, err, dedup.ErrUnidentified)
	require.Zero(t, c.calls)

	h = handler(t, p, c, func(cfg *dedup.Config[card]) {
		cfg.Identify = func(m broker.Message) (dedup.Identity, error) {
			return dedup.Identity{ID: m.Headers["id"], Entity: m.Headers["card"]}, nil
		}
	})
	require.NoError(t, h.Handle(t.Context(), broker.Message{Headers: map[string]string{"id": "1", "card": "card"}, Body: []byte("xxx")}))
	require.JSONEq(t, done, p.document(t))
}

// What isn't understood is left as it is.
func TestHandle_BrokenDocuments(t *testing.T) {
	for _, stored := range []string{
		"", "{", "null", "[]", "{}", `"x"`, done + "x", done + done,
		`{"format":2,"state":{},"outbox":{}}`,
		`{"format":1,"state":{},"outbox":{},"more":1}`,
		`{"format":1,"outbox":{}}`, `{"format":1,"state":{}}`,
		`{"format":1,"state":[],"outbox":{}}`,
		`{"format":1,"state":{},"outbox":[]}`,
		`{"format":1,"state":{},"outbox":{"cards/payment-1":[{}]}}`,
		`{"format":1,"state":{},"outbox":{"cards/payment-1":[{"id":"1","topic":"t","key":"k","body":"?"}]}}`,
		strings.Repeat("[", 20_000),
	} {
		t.Run("", func(t *testing.T) {
			p, c := newPorts(t), &counts{}
			_, err := p.Memory.Swap(t.Context(), "card", []byte(stored), "")
			require.NoError(t, err)
			err = handler(t, p, c).Handle(t.Context(), payment(1))
			require.ErrorIs(t, err, dedup.ErrBroken)
			require.ErrorContains(t, err, "entity card")
			require.Equal(t, stored, p.document(t))
			require.Zero(t, c.calls)
			require.Empty(t, p.sent.Messages("confirmations"))
		})
	}
}

func TestNew_SaysAllThatIsMissing(t *testing.T) {
	_, err := dedup.New(dedup.Config[card]{Attempts: -1})
	for _, what := range []string{"Name", "Documents", "Processed", "Publisher", "Apply", "Attempts"} {
		require.ErrorContains(t, err, "dedup: Config."+what)
	}
	p := newPorts(t)
	_, err = dedup.New(dedup.Config[card]{Name: "a/b", Documents: p, Processed: p, Publisher: p, Apply: (&counts{}).debit})
	require.ErrorContains(t, err, "Name")
}
