package broker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
)

// behaving has a class without being the package's own error.
type behaving struct{ class broker.Class }

func (behaving) Error() string         { return "behaving" }
func (b behaving) Class() broker.Class { return b.class }

func TestClassOf(t *testing.T) {
	cause := errors.New("cause")
	for name, test := range map[string]struct {
		err  error
		want broker.Class
	}{
		"unclassified":             {cause, broker.Transient},
		"classified":               {broker.Classify(broker.Permanent, cause), broker.Permanent},
		"classified, then wrapped": {fmt.Errorf("more: %w", broker.Classify(broker.Unavailable, cause)), broker.Unavailable},
		"by behaviour":             {fmt.Errorf("more: %w", behaving{broker.Unavailable}), broker.Unavailable},
		"the outer class counts":   {broker.Classify(broker.Unknown, broker.Classify(broker.Permanent, cause)), broker.Unknown},
		"among joined":             {errors.Join(cause, broker.Classify(broker.Permanent, cause)), broker.Permanent},
		"deadline":                 {fmt.Errorf("more: %w", context.DeadlineExceeded), broker.Unknown},
		"canceled":                 {fmt.Errorf("more: %w", context.Canceled), broker.Unknown},
		"class before context":     {broker.Classify(broker.Unavailable, context.Canceled), broker.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, broker.ClassOf(test.err))
		})
	}
}

// narrowed has a scope without being the package's own error.
type narrowed struct{ error }

func (narrowed) Scope() broker.Scope { return broker.ScopeTopic }

// O1: an error says whom it concerns.
func TestScopeOf(t *testing.T) {
	cause := errors.New("cause")
	for name, test := range map[string]struct {
		err  error
		want broker.Scope
	}{
		"nothing":              {nil, broker.ScopeUnknown},
		"no scope":             {cause, broker.ScopeUnknown},
		"only a class":         {broker.Classify(broker.Permanent, cause), broker.ScopeUnknown},
		"scoped, then wrapped": {fmt.Errorf("more: %w", broker.Scoped(broker.Transient, broker.ScopeRow, cause)), broker.ScopeRow},
		"by behaviour":         {fmt.Errorf("more: %w", narrowed{cause}), broker.ScopeTopic},
		"the outer counts":     {broker.Scoped(broker.Unknown, broker.ScopeBroker, narrowed{cause}), broker.ScopeBroker},
		"a class keeps it":     {broker.Classify(broker.Unavailable, narrowed{cause}), broker.ScopeTopic},
		"a context":            {context.DeadlineExceeded, broker.ScopeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, broker.ScopeOf(test.err))
		})
	}
	require.NoError(t, broker.Scoped(broker.Permanent, broker.ScopeRow, nil))
	require.Equal(t, "unknown row topic broker Scope(9)", fmt.Sprint(broker.ScopeUnknown, " ", broker.ScopeRow, " ",
		broker.ScopeTopic, " ", broker.ScopeBroker, " ", broker.Scope(9)))
}

func TestClassifyKeepsTheError(t *testing.T) {
	require.NoError(t, broker.Classify(broker.Permanent, nil))
	err := broker.Classify(broker.Permanent, context.Canceled)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, context.Canceled.Error())
}

func TestClassNames(t *testing.T) {
	require.Equal(t, "transient unavailable unknown permanent Class(9)",
		fmt.Sprint(broker.Transient, " ", broker.Unavailable, " ", broker.Unknown, " ", broker.Permanent, " ", broker.Class(9)))
}

func TestPublishErrorNamesTheFirst(t *testing.T) {
	err := &broker.PublishError{Failed: map[int]error{7: errors.New("seven"), 2: errors.New("two")}}
	require.EqualError(t, err, "broker: 2 messages not stored, the first because: two")
	require.NotPanics(t, func() { _ = (&broker.PublishError{}).Error() })
}

func TestPrefixed(t *testing.T) {
	b := memory.New(memory.Config{})
	p := broker.Prefixed(b, "partner.")
	want := b.Capabilities()
	want.TopicPrefix = "partner."
	require.Equal(t, want, p.Capabilities())
	require.NoError(t, p.EnsureTopics(t.Context(), "empty"))

	sent := []broker.Message{{ID: "1", Topic: "orders", Key: "a"}, {ID: "2", Topic: "orders", Key: "b"}}
	b.FailWhere(func(m broker.Message) error {
		if m.Topic == "partner.orders" && m.ID == "2" {
			return errors.New("refused")
		}
		return nil
	})
	failed, ok := errors.AsType[*broker.PublishError](p.Publish(t.Context(), sent))
	require.True(t, ok)
	require.Len(t, failed.Failed, 1)
	require.Error(t, failed.Failed[1])
	require.Equal(t, "orders", sent[0].Topic, "the caller's messages stay as they are")
	require.Equal(t, []string{"partner.empty", "partner.orders"}, b.Topics())

	c, err := p.Consume(t.Context(), "orders", "shipping")
	require.NoError(t, err)
	got, err := c.Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, "partner.orders", got[0].Topic, "as the broker has it")
	lag, err := c.(broker.Lagging).Lag(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), lag)
	require.NoError(t, c.Ack(t.Context(), got...))
	require.Zero(t, b.Unacknowledged("partner.orders", "partner.shipping"))
	require.Equal(t, 1, b.Unacknowledged("partner.orders", "shipping"), "the group has the prefix, too")

	require.NoError(t, p.Close(t.Context()))
	require.NoError(t, b.EnsureTopics(t.Context(), "still open"))
}

func TestPrefixedWithoutPrefixIsTheBroker(t *testing.T) {
	b := memory.New(memory.Config{})
	require.Same(t, b, broker.Prefixed(b, ""))
}
