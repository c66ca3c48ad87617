package dedup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/broker"
)

// format is the version of what documents look like.
const format = 1

// stored is a document's form in the store.
type stored[S any] struct {
	Format int `json:"format"`
	State  S   `json:"state"`
	// Outbox has what is to be published, by the id of the message that led to it:
	// of those messages only that are not done with.
	Outbox map[string][]message `json:"outbox"`
}

// message is a broker.Message, field by field.
type message struct {
	ID         string            `json:"id"`
	Topic      string            `json:"topic"`
	Key        string            `json:"key"`
	Headers    map[string]string `json:"headers"`
	Body       []byte            `json:"body"`
	CloudEvent map[string]string `json:"cloud_event"`
}

// document is an entity that was loaded.
type document[S any] struct {
	stored[S]
	in       Documents
	key      string
	revision string
}

func load[S any](ctx context.Context, in Documents, key string) (*document[S], error) {
	value, revision, err := in.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("load the document: %w", err)
	}
	d := &document[S]{in: in, key: key, revision: revision}
	if revision != "" {
		if err := d.decode(value); err != nil {
			return nil, fmt.Errorf("%w (%d bytes at revision %s; repair it, or restore it from a backup): %w", ErrBroken, len(value), revision, err)
		}
	}
	if d.Outbox == nil {
		d.Outbox = map[string][]message{}
	}
	return d, nil
}

func (d *document[S]) decode(value []byte) error {
	var head struct {
		Format int             `json:"format"`
		State  json.RawMessage `json:"state"`
		Outbox json.RawMessage `json:"outbox"`
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.DisallowUnknownFields() // They would be lost.
	if err := decoder.Decode(&head); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something comes after its end")
	}
	switch {
	case head.Format != format:
		return fmt.Errorf("its format is %d, this program knows %d", head.Format, format)
	case head.State == nil || head.Outbox == nil:
		return errors.New("state or outbox is missing")
	}
	if err := json.Unmarshal(head.State, &d.State); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := json.Unmarshal(head.Outbox, &d.Outbox); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	for id, messages := range d.Outbox {
		for i, m := range messages {
			if m.ID == "" || m.Topic == "" || m.Key == "" {
				return fmt.Errorf("outbox: message %d because of %s has no id, topic or key", i, id)
			}
		}
	}
	return nil
}

func (d *document[S]) save(ctx context.Context) error {
	d.Format = format
	value, err := json.Marshal(d.stored)
	if err != nil {
		return fmt.Errorf("encode the document: %w", err)
	}
	next, err := d.in.Swap(ctx, d.key, value, d.revision)
	if err != nil {
		return fmt.Errorf("save the document (%d bytes): %w", len(value), err)
	}
	d.revision = next
	return nil
}

// forget takes out what a message led to.
func (d *document[S]) forget(ctx context.Context, id string) error {
	if _, there := d.Outbox[id]; !there {
		return nil
	}
	delete(d.Outbox, id)
	return d.save(ctx)
}

// outgoing is what Apply returned, as it is saved. What no broker would take is
// refused while there is somebody to tell.
func outgoing(messages []broker.Message) ([]message, error) {
	out := make([]message, len(messages))
	seen := map[string]bool{}
	for i, m := range messages {
		if m.ID == "" {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, fmt.Errorf("outgoing message %d: %w", i, err)
			}
			m.ID = id.String()
		}
		switch {
		case m.Topic == "" || m.Key == "":
			return nil, fmt.Errorf("outgoing message %d: Topic or Key is empty: set both", i)
		case seen[m.ID]:
			return nil, fmt.Errorf("outgoing message %d: its ID %q is another's too: give each its own, or none", i, m.ID)
		case !isText(m):
			return nil, fmt.Errorf("outgoing message %d: its ID, Topic, Key or headers are not UTF-8: put bytes into Body", i)
		}
		seen[m.ID] = true
		out[i] = message(m)
	}
	return out, nil
}

// isText says whether JSON keeps all but the body as it is.
func isText(m broker.Message) bool {
	ok := utf8.ValidString(m.ID) && utf8.ValidString(m.Topic) && utf8.ValidString(m.Key)
	for _, headers := range []map[string]string{m.Headers, m.CloudEvent} {
		for name, value := range headers {
			ok = ok && utf8.ValidString(name) && utf8.ValidString(value)
		}
	}
	return ok
}

// waves cuts messages into calls with one message of a key at most, which keep the
// order of each key with any broker.
func waves(all []message) iter.Seq[[]broker.Message] {
	return func(yield func([]broker.Message) bool) {
		var wave []broker.Message
		keys := map[string]bool{}
		for _, m := range all {
			if keys[m.Key] {
				if !yield(wave) {
					return
				}
				wave = nil
				clear(keys)
			}
			keys[m.Key] = true
			wave = append(wave, broker.Message(m))
		}
		if len(wave) > 0 {
			yield(wave)
		}
	}
}
