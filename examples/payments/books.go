package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/subscription/dedup/natskv"
)

// books is what there is at the end.
type books struct {
	payments, copies        int // distinct, and as they were sent
	confirmed, confirmation int // distinct, and as they were received
	cents                   int64
	wrong                   []string
}

func (b *books) differ(format string, a ...any) { b.wrong = append(b.wrong, fmt.Sprintf(format, a...)) }

// closeBooks compares what was sent, what the cards have, and what was confirmed.
func closeBooks(ctx context.Context, js jetstream.JetStream) (*books, error) {
	b := &books{}
	paid := map[string]Payment{}
	err := each(ctx, js, "payments", func(m *jetstream.RawStreamMsg) error {
		var p Payment
		b.copies++
		err := json.Unmarshal(m.Data, &p)
		paid[m.Header.Get("id")] = p
		return err
	})
	if err != nil {
		return nil, err
	}
	b.payments = len(paid)

	confirmed, byCard, err := b.confirmations(ctx, js)
	if err != nil {
		return nil, err
	}
	b.confirmed = len(confirmed)

	want := map[string]Card{}
	for id, p := range paid {
		c := want[p.Card]
		c.Debited += p.Cents
		c.Payments++
		want[p.Card] = c
		b.cents += p.Cents
		if !confirmed[id] {
			b.differ("%s was never confirmed", id)
		}
	}
	store, err := natskv.Open(ctx, js, natskv.Config{Bucket: "cards"})
	if err != nil {
		return nil, err
	}
	for _, card := range slices.Sorted(maps.Keys(want)) {
		if err := b.compare(ctx, store, card, want[card]); err != nil {
			return nil, err
		}
		b.follow(card, byCard[card], paid)
	}
	return b, nil
}

// confirmations says which payments were confirmed, and what each card was told. Copies
// of a confirmation have to be the same.
func (b *books) confirmations(ctx context.Context, js jetstream.JetStream) (confirmed map[string]bool, byCard map[string][]Confirmation, err error) {
	type sent struct{ id, body string }
	first := map[string]sent{}
	confirmed, byCard = map[string]bool{}, map[string][]Confirmation{}
	err = each(ctx, js, "confirmations", func(m *jetstream.RawStreamMsg) error {
		var c Confirmation
		if err := json.Unmarshal(m.Data, &c); err != nil {
			return err
		}
		b.confirmation++
		now := sent{m.Header.Get(jetstream.MsgIDHeader), string(m.Data)}
		switch was, again := first[c.Payment]; {
		case !again:
			first[c.Payment] = now
			confirmed[c.Payment] = now.id != ""
			byCard[c.Card] = append(byCard[c.Card], c)
		case was != now:
			b.differ("%s was confirmed as %v and as %v", c.Payment, was, now)
		}
		return nil
	})
	return confirmed, byCard, err
}

// compare looks at the document of a card.
func (b *books) compare(ctx context.Context, store *natskv.Store, card string, want Card) error {
	value, _, err := store.Get(ctx, card)
	if err != nil {
		return err
	}
	var document struct {
		State  Card                       `json:"state"`
		Outbox map[string]json.RawMessage `json:"outbox"`
	}
	if err := json.Unmarshal(value, &document); err != nil {
		return fmt.Errorf("%s: %w", card, err)
	}
	if document.State != want {
		b.differ("%s has %+v, want %+v", card, document.State, want)
	}
	if len(document.Outbox) > 0 {
		b.differ("%s has %d messages left to send", card, len(document.Outbox))
	}
	return nil
}

// follow goes through the confirmations of a card, each of which continues the one
// before: a debit that wasn't confirmed, or not as it was made, leaves a gap.
func (b *books) follow(card string, all []Confirmation, paid map[string]Payment) {
	slices.SortFunc(all, func(a, b Confirmation) int { return cmp.Compare(a.Number, b.Number) })
	var debited int64
	for i, c := range all {
		debited += paid[c.Payment].Cents
		if c.Number != i+1 || c.Debited != debited {
			b.differ("%s: confirmation %d is %+v, want a total of %d", card, i+1, c, debited)
			return
		}
	}
}

// each calls f for all messages of a stream.
func each(ctx context.Context, js jetstream.JetStream, name string, f func(*jetstream.RawStreamMsg) error) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err == nil {
			err = f(m)
		}
		if err != nil {
			return fmt.Errorf("%s, message %d: %w", name, seq, err)
		}
	}
	return nil
}

func (b *books) print(w io.Writer) {
	fmt.Fprintf(w, "%d payments in the books, received %d times: %d.%02d debited\n", b.payments, b.copies, b.cents/100, b.cents%100)
	fmt.Fprintf(w, "%d confirmations, received %d times\n", b.confirmed, b.confirmation)
	for _, wrong := range b.wrong {
		fmt.Fprintf(w, "WRONG: %s\n", wrong)
	}
	if len(b.wrong) == 0 {
		fmt.Fprintln(w, "Every card was debited once for each payment, and each confirmation has one id and one body.")
	}
}
