package subscription

import (
	"context"
	"fmt"
	"reflect"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
)

// Handles reports whether the stream has a handler for messages of this Go type.
func (s Stream) Handles(event any) bool {
	for _, h := range s.Handlers {
		if h.event == reflect.TypeOf(event) {
			return true
		}
	}
	return false
}

// HandleNow hands a message to its handler, in a unit of work with its inbox row, as a
// [Runner] does at its first attempt. What a runner does of an error is the caller's:
// it isn't tried again, nor parked. One that was handled before is an error.
//
// For package waybilltest.
func (s Stream) HandleNow(ctx context.Context, m broker.Message, meta domain.Metadata, event any) error {
	s = s.WithDefaults()
	handlers, err := s.check()
	if err != nil {
		return fmt.Errorf("subscription %q: %w", s.Name, err)
	}
	t, err := s.Units.Domain().EventTypeOf(event)
	if err != nil {
		return err
	}
	h, ok := handlers[t]
	if !ok {
		return fmt.Errorf("subscription %q has no handler for %T: add subscription.On for it", s.Name, event)
	}
	provider, err := s.Units.Provider(s.Provider)
	if err != nil {
		return err
	}
	r := &Runner{stream: s, provider: provider, incoming: incoming{provider: provider, stream: s}}
	return r.handle(ctx, work{&message{Message: m, id: m.ID, key: m.Key, keyID: indexable(m.Key), meta: meta}, h, event})
}
