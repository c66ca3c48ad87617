package correlation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

const (
	// maxGuesses is how many texts of a message are looked up as identities of processes.
	maxGuesses = 100
	// maxIdentity is how long an identity may be, in bytes.
	maxIdentity = 255
)

// Process is one that heard a message, or that has set it aside.
type Process struct {
	Provider string     `json:"provider"`
	Process  string     `json:"process"` // "library.lending"
	ID       string     `json:"id"`      // "": it can't be known
	Status   string     `json:"status"`  // what became of it; "": there is none, or none any more
	Heard    int64      `json:"heard"`   // messages, by now
	LastAt   *time.Time `json:"last_at"`
	EndedAt  *time.Time `json:"ended_at"`
}

// processes reads which processes of a database heard the messages, or have set them
// aside. No index leads from a message to who has heard it, so processes are looked up by
// identity. An event has it among its data: the process whose it is has the message among
// those that it last heard. Older ones have left signs: what is for one process alone, dead
// letters of processes, and what a process sent or set because of a message.
func (t *Trace) processes(ctx context.Context, p uow.Provider) error {
	s := processdb.New(p)
	if err := s.Check(ctx); err != nil {
		return err
	}
	names, err := s.Names(ctx)
	if err != nil {
		return err
	}
	for _, m := range slices.Clone(t.order) {
		for _, name := range names {
			if !m.reached(p.Name(), name) {
				continue
			}
			data, err := t.data(ctx, m)
			if err != nil {
				return err
			}
			if m.Kind == "message" && data["process"] != strings.TrimPrefix(name, m.Context()+".") {
				continue // It is for another process, which shares the stream.
			}
			sign, _ := data["id"].(string)
			if m.Kind != "message" {
				if sign, err = t.sign(ctx, m, p.Name(), name, names); err != nil {
					return err
				}
			}
			found, err := s.Hearers(ctx, name, append(identities(data), sign))
			if err != nil {
				return err
			}
			m.Processes = append(m.Processes, hearer(found, Process{Provider: p.Name(), Process: name, ID: sign}, m.MessageID))
		}
	}
	return nil
}

// hearer is the process that has the message among those that it last heard, or else the
// one that a sign leads to.
func hearer(found []processdb.Hearer, sign Process, messageID string) Process {
	i := slices.IndexFunc(found, func(h processdb.Hearer) bool { return h.Has(messageID) })
	if i < 0 {
		i = slices.IndexFunc(found, func(h processdb.Hearer) bool { return h.ID == sign.ID })
	}
	if i >= 0 {
		h := found[i]
		sign.ID, sign.Status, sign.Heard, sign.LastAt, sign.EndedAt = h.ID, h.Status, h.Version, &h.LastAt, h.EndedAt
	}
	return sign
}

// reached says whether a message came to the processes of a kind.
func (m *Message) reached(provider, name string) bool {
	return slices.ContainsFunc(m.Handled, func(h Handled) bool {
		return h.Provider == provider && strings.HasPrefix(h.Subscription, name+".")
	}) || slices.ContainsFunc(m.DeadLetters, func(l Letter) bool { return l.Provider == provider && l.Subscription == name })
}

// Context is that of the stream of a message; "": it isn't known.
func (m *Message) Context() string {
	context, _, _ := strings.Cut(m.Stream, "::")
	return context
}

// sign is the identity that the fate of a message, or what it caused, gives away; "": none
// does.
func (t *Trace) sign(ctx context.Context, m *Message, provider, name string, names []string) (string, error) {
	for _, l := range m.DeadLetters {
		if l.Provider == provider && l.Subscription == name {
			return l.Key, nil
		}
	}
	for _, caused := range t.order {
		if caused.CausationID != m.MessageID {
			continue
		}
		if id, ok := ownerIn(caused.Stream, name, names); ok { // A timer that it set.
			return id, nil
		}
		if caused.Kind != "command" {
			continue
		}
		body, err := t.body(ctx, caused)
		if err != nil {
			return "", err
		}
		meta, _, wrong := outbox.ParseEnvelope(body)
		if wrong != nil || meta.Command == nil {
			continue // It tells nothing.
		}
		if context, of, id, ok := processmsg.ParseAddress(meta.Command.Reply); ok && context+"."+of == name {
			return id, nil
		}
	}
	return "", nil
}

// ownerIn is the identity in the stream of what is for a process of one kind, unless it may
// be of another kind, too: x-1 of lending is written as 1 of lending-x is.
func ownerIn(stream, name string, names []string) (id string, ok bool) {
	for _, other := range names {
		if rest, of := strings.CutPrefix(stream, process.Owner(other, "")); of {
			if ok || other != name {
				return "", false
			}
			id, ok = rest, true
		}
	}
	return id, ok
}

// data is what a message carries; nil: it isn't known.
func (t *Trace) data(ctx context.Context, m *Message) (map[string]any, error) {
	body, err := t.body(ctx, m)
	if err != nil {
		return nil, err
	}
	var carried struct {
		Data map[string]any `json:"data"`
	}
	_ = json.Unmarshal(body, &carried) // What is no JSON tells nothing.
	return carried.Data, nil
}

// identities are the texts among data that may be that of a process.
func identities(data map[string]any) (texts []string) {
	for _, value := range data {
		if text, ok := value.(string); ok && len(text) <= maxIdentity && outbox.Storable(text) && len(texts) < maxGuesses {
			texts = append(texts, text)
		}
	}
	return texts
}

// body is what is published of a message; nil: no row of it is here.
func (t *Trace) body(ctx context.Context, m *Message) ([]byte, error) {
	if len(m.Rows) == 0 {
		return nil, nil
	}
	found, err := t.stores[m.Rows[0].Provider].Message(ctx, m.MessageID)
	switch {
	case errors.Is(err, outbox.ErrNoMessage):
		return nil, nil // It was removed just now.
	case err != nil:
		return nil, err
	}
	return found.Rows[0].Payload, nil
}
