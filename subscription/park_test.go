package subscription_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

type deadLetter struct {
	bun.BaseModel `bun:"table:dead_letters"`

	ID           string
	Subscription string
	Topic        string
	PartitionKey string
	MessageID    string
	MessageType  string
	Body         []byte
	Headers      string
	Error        string
	ErrorType    string
	Stack        string
	Reason       string
	Attempts     int
	FirstAt      dbtime.Time
	LastAt       dbtime.Time
	Status       string
	Seq          int64
	KeyID        string
	Holds        bool
	Replays      int
	DueAt        dbtime.Time
	TakenUntil   dbtime.Time
}

func (w *world) parked() []deadLetter {
	w.t.Helper()
	var all []deadLetter
	require.NoError(w.t, w.provider.Reader().NewSelect().Model(&all).Order("seq").Scan(context.Background()))
	return all
}

// C-21
func TestClaim_A73_PoisonBytesAreParkedOnceAndOthersGoOn(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		poison := broker.Message{
			ID: uuid.NewString(), Topic: topic, Key: "o-0", Body: []byte("\x00\xff no message"),
			Headers: map[string]string{"type": placedV1, "content-type": "application/json"},
		}
		sent := append([]broker.Message{poison}, orders(20)...)
		w.publish(sent...)
		// It comes again because its acknowledgement is lost, and by a restart.
		deaf := &altered{Broker: w.broker, ack: func([]broker.Delivery) []broker.Delivery { return nil }}
		r, stop := w.start(w.stream(), deaf)
		w.until(func() bool { s := r.Status(); return s.Handled == 20 && s.Parked == 1 }, "the others go on, also those of its key")
		w.publish(poison)
		w.until(func() bool { return r.Status().Duplicates == 1 }, "it comes again")
		stop()
		again, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "it is acknowledged")
		stop()
		require.Zero(t, again.Status().Parked)
		require.Len(t, w.logs.lines("level=WARN"), 1)

		require.Equal(t, 20, w.allEffects())
		all := w.parked()
		require.Len(t, all, 1)
		d := all[0]
		require.NoError(t, uuid.Validate(d.ID))
		require.Equal(t, "shipping", d.Subscription)
		require.Equal(t, topic, d.Topic)
		require.Equal(t, "o-0", d.PartitionKey)
		require.Equal(t, poison.ID, d.MessageID)
		require.Equal(t, placedV1, d.MessageType)
		require.Equal(t, poison.Body, d.Body)
		require.JSONEq(t, fmt.Sprintf(`{"type":"Ordering.OrderPlaced.v1","content-type":"application/json","waybill-native-id":%q}`, poison.ID), d.Headers)
		require.Contains(t, d.Error, "not a message")
		require.Equal(t, "undecodable", d.Reason)
		require.Zero(t, d.Attempts)
		require.WithinDuration(t, time.Now(), d.LastAt.Time, time.Minute)
		require.False(t, d.FirstAt.Time.After(d.LastAt.Time))
		require.Equal(t, "parked", d.Status)
		counts, err := subscription.CountDeadLetters(t.Context(), w.provider.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"shipping": 1}, counts)
	})
}

// Everything that isn't a message, a tombstone among it (F-35, C-78), is parked as it
// came: no body is not an empty one, and neither is the text "null".
func TestUndecodable(t *testing.T) {
	const envelope = `{"data":%s,"metadata":{"headers":{%s},"envelope":{"specversion":"1.0"},"domain":{"aggregate_id":"o"}}}`
	head := func(id, typ string) string { return fmt.Sprintf(`"id":%q,"type":%q`, id, typ) }
	bodies := map[string][]byte{
		"tombstone":      nil,
		"empty":          {},
		"null":           []byte("null"),
		"cut off":        []byte(`{"data":{"order_id":"o"},"metadata":{"head`),
		"no data":        []byte(fmt.Sprintf(`{"metadata":{"headers":{%s}}}`, head("no data", placedV1))),
		"null data":      []byte(fmt.Sprintf(envelope, "null", head("null data", placedV1))),
		"no id":          []byte(fmt.Sprintf(envelope, "{}", fmt.Sprintf(`"type":%q`, placedV1))),
		"no type":        []byte(fmt.Sprintf(envelope, "{}", `"id":"no type"`)),
		"other data":     []byte(fmt.Sprintf(envelope, `{"order_id":7}`, head("other data", placedV1))),
		"wrong checksum": []byte(strings.Replace(fmt.Sprintf(envelope, "{}", head("wrong checksum", placedV1)), `"1.0"`, `"1.0","checksum":"sha256:00"`, 1)),
		"too old":        []byte(fmt.Sprintf(envelope, "{}", head("too old", "Ordering.OrderCancelled.v1"))),
	}
	databases(t, func(t *testing.T, w *world) {
		for id, body := range bodies {
			w.publish(broker.Message{ID: id, Topic: topic, Key: "o", Body: body})
		}
		s := w.streamOf(
			subscription.On(func(ctx context.Context, e OrderPlaced) error { return effect(ctx, e) }),
			subscription.On(func(context.Context, OrderCancelled) error { return nil }),
		)
		_, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.Zero(t, w.allEffects())
		require.Equal(t, len(bodies), w.inbox())
		all := w.parked()
		require.Len(t, all, len(bodies))
		for _, d := range all {
			require.Equal(t, "undecodable", d.Reason, d.MessageID)
			require.NotEmpty(t, d.Error, d.MessageID)
			require.Contains(t, bodies, d.MessageID)
			require.Equal(t, string(bodies[d.MessageID]), string(d.Body), d.MessageID)
		}
		var none string
		require.NoError(t, w.provider.Reader().NewRaw("SELECT message_id FROM dead_letters WHERE body IS NULL").Scan(t.Context(), &none))
		require.Equal(t, "tombstone", none)
	})
}

// F-38, F-39: it waits for the build that knows it, and holds up nobody else.
func TestNewerVersionIsParkedWithTheRemedy(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.publish(
			message("newer", "Ordering.OrderPlaced.v2", "o", `{"whatever":true}`),
			placed("o", "behind it"),
		)
		_, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "both are acknowledged")
		stop()
		all := w.parked()
		require.Len(t, all, 1)
		require.Equal(t, "newer_version", all[0].Reason)
		require.Equal(t, "Ordering.OrderPlaced.v2", all[0].MessageType)
		require.Contains(t, all[0].Error, "newer than the known Ordering.OrderPlaced.v1; deploy a build that declares it, which then handles it by itself")
		require.Equal(t, []string{"behind it"}, w.effects("o"))
	})
}

// F-38: what doesn't concern the subscription is acknowledged and counted.
func TestUnknownAndUnhandledAreIgnored(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	w.publish(
		message("1", "Ordering.NoteAdded.v1", "o", `{}`),      // nobody declared it
		message("2", "com.example.order.made", "o", `{}`),     // no name of ours
		message("3", "Ordering.OrderCancelled.v2", "o", `{}`), // declared, without a handler
		message("4", "Ordering.OrderCancelled.v3", "o", `{}`), // likewise, and newer
		placed("o", "behind them"),
	)
	r, stop := w.start(w.stream(), w.broker)
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	stop()
	require.EqualValues(t, 4, r.Status().Ignored)
	require.EqualValues(t, 1, r.Status().Handled)
	require.Zero(t, w.deadLetters())
	require.Equal(t, 1, w.inbox())
	require.Empty(t, w.logs.lines("level=WARN"))
}

func TestPark(t *testing.T) {
	require.NoError(t, subscription.Park(nil))
	databases(t, func(t *testing.T, w *world) {
		errHopeless := errors.New("no such customer")
		runs := 0
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if e.Note == "fine" {
				return effect(ctx, e)
			}
			if runs++; runs < 3 {
				return errors.New("try again")
			}
			if err := effect(ctx, e); err != nil {
				return err
			}
			return fmt.Errorf("prepare: %w", subscription.Park(errHopeless))
		}))
		m := placed("o", "")
		w.publish(m, placed("o", "fine"))
		r, stop := w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "both are acknowledged")
		w.publish(m)
		w.until(w.acknowledged("shipping"), "the duplicate too")
		stop()
		require.EqualValues(t, 1, r.Status().Parked)
		require.Equal(t, []string{"fine"}, w.effects("o"), "what the handler saved is rolled back")
		all := w.parked()
		require.Len(t, all, 1)
		require.Equal(t, "parked", all[0].Reason)
		require.Equal(t, "prepare: no such customer", all[0].Error)
		require.Equal(t, 3, all[0].Attempts)
		require.Equal(t, m.Body, all[0].Body)
		require.Equal(t, 2, w.inbox())
	})
}

// C-20, F-79: nothing in a message may keep it from being parked.
func TestWhatDatabasesRefuseIsParkedAllTheSame(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		long := strings.Repeat("x", 5000)
		nasty := broker.Message{
			ID: "nul\x00 \xff", Topic: topic, Key: "key\x00\xff' ? \\ " + long, Body: []byte{0, 1, 0xff, '\'', '\\', '?'},
			Headers: map[string]string{"h\x00": "v\x00\xff \u2028 ' ? \\", "type": "t\x00"},
		}
		other := nasty
		other.ID = long // an index entry can't hold it
		w.publish(nasty, other, nasty, other)
		r, stop := w.start(w.stream(), w.broker)
		w.until(w.acknowledged("shipping"), "all are acknowledged")
		stop()
		require.EqualValues(t, 2, r.Status().Parked)
		require.EqualValues(t, 2, r.Status().Duplicates)
		for _, d := range w.parked() {
			require.Equal(t, nasty.Body, d.Body)
			require.Regexp(t, "^sha256:[0-9a-f]{64}$", d.MessageID)
			require.True(t, json.Valid([]byte(d.Headers)))
		}

		w = newWorld(t, openSQLite(t))
		w.publish(placed("o", ""))
		s := w.streamOf(subscription.On(func(context.Context, OrderPlaced) error {
			return subscription.Park(errors.New(strings.Repeat("é", 3000)))
		}))
		_, stop = w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "it is acknowledged")
		stop()
		require.Len(t, []rune(w.parked()[0].Error), 2048)
	})
}

// F-76: poison without any id is told apart by its bytes.
func TestPoisonWithoutAnID(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	poison := func(body string) broker.Message {
		return broker.Message{ID: uuid.NewString(), Topic: topic, Key: "o", Body: []byte(body)}
	}
	w.publish(poison("one"), poison("two"), poison("one"))
	r, stop := w.start(w.stream(), &altered{Broker: w.broker, receive: func(d broker.Delivery) broker.Delivery {
		d.ID = ""
		return d
	}})
	w.until(w.acknowledged("shipping"), "all are acknowledged")
	stop()
	require.EqualValues(t, 2, r.Status().Parked)
	require.EqualValues(t, 1, r.Status().Duplicates)
}

type panicky struct {
	OrderID string `json:"order_id"`
}

func TestPanicIsAFailure(t *testing.T) {
	declared := domain.MustNew("shipping", domain.Foreign[OrderPlaced](placedV1),
		domain.Foreign[panicky]("Ordering.OrderCancelled.v2", domain.Upcast(1, func(OrderCancelled) panicky { panic("in an upcaster") })))
	w := newWorld(t, openSQLite(t))
	units, err := uow.New(uow.Config{Domain: declared, Providers: []uow.Provider{w.provider}})
	require.NoError(t, err)
	runs := 0
	s := w.streamOf(
		subscription.On(func(ctx context.Context, e OrderPlaced) error {
			runs++
			if err := effect(ctx, e); err != nil {
				return err
			}
			if runs == 1 {
				panic("in a handler")
			}
			return nil
		}),
		subscription.On(func(context.Context, panicky) error { return nil }),
	)
	s.Units = units
	w.publish(placed("o", ""), message("2", "Ordering.OrderCancelled.v1", "upcast", "{}"))
	r, stop := w.start(s, w.broker)
	w.until(func() bool { return r.Status().Handled == 1 && r.Status().Retries > 2 }, "the handler gets another chance")
	stop()
	require.Len(t, w.effects("o"), 1)
	require.Contains(t, r.Status().LastError, "in an upcaster")
	require.Contains(t, r.Status().LastError, "park_test.go", "with the stack")
	require.Equal(t, 1, w.broker.Unacknowledged(topic, "shipping"))
}
