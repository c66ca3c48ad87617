// Package dedup handles messages once on stores that have no transactions over
// several rows: all that it needs is to get a document by its key, and to replace
// one if nobody has meanwhile.
//
// An entity is one document. Beside the entity's state it holds the outgoing
// messages of the messages in hand, so that both are saved by one
// compare-and-set. The ids of messages that are done with are in a store of their
// own, so that documents don't grow. [Handler.Handle] does, in this order:
//
//  1. load the document;
//  2. then ask whether the id is among the processed: if so, there is nothing to do;
//  3. unless the document has outgoing messages under the id: call Apply, and save
//     state and outgoing messages by compare-and-set;
//  4. publish the outgoing messages as they were saved;
//  5. add the id to the processed;
//  6. take the outgoing messages out of the document, by compare-and-set.
//
// Whoever dies after a step has the message delivered again, to any worker, and it
// goes on from there. That 2 comes after 1 is what makes it right: an id that is
// not among the processed after the document was loaded was still in the document
// when its outgoing messages would have had to be there, or was never applied; and
// what has changed since the document was loaded makes the compare-and-set of 3
// fail.
package dedup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill/broker"
)

// Documents is a store of documents by key. Keys are any strings but the empty
// one. It is safe for concurrent use. deduptest.RunDocuments is its contract.
type Documents interface {
	// Get returns the document and its revision; without one, nil and "". It may
	// return an older one, which costs a conflict. The slice is the caller's.
	Get(ctx context.Context, key string) (value []byte, revision string, err error)
	// Swap replaces the document if revision is still its own, or creates it if
	// revision is "" and there is none. Otherwise the error is ErrConflict, which it
	// may also be for a moment after another write of the key. When it
	// returns nil, the document is durable. After another error it may have been
	// replaced, or be replaced later. The revision of a document is never used
	// again for the same key.
	Swap(ctx context.Context, key string, value []byte, revision string) (next string, err error)
}

// Processed is the set of ids that are done with. Ids are any strings but the
// empty one. It is safe for concurrent use. deduptest.RunProcessed is its contract.
//
// Has must see what Add has added, whoever called it, as soon as Add has returned,
// and also if Has said before that it wasn't there: a cache of such answers, or a
// replica that lags behind, makes messages take effect twice.
type Processed interface {
	// Add is durable when it returns nil. To add an id again is no error.
	Add(ctx context.Context, id string) error
	Has(ctx context.Context, id string) (bool, error)
}

var (
	// ErrConflict says that somebody else has changed a document. From
	// Handler.Handle: more often than Config.Attempts allows. The message is to be
	// delivered again.
	ErrConflict = errors.New("the document was changed meanwhile")
	// ErrTooLarge says that a store doesn't take a document or a key of this size.
	// Nothing was saved, and trying again doesn't help.
	ErrTooLarge = errors.New("too large for the store")
	// ErrUnidentified says that a message has no id, or belongs to no entity.
	ErrUnidentified = errors.New("the message has no identity")
	// ErrBroken says that a stored document can't be understood. It is left as it is.
	ErrBroken = errors.New("the stored document is broken")
)

// Identity is what a message is told from others by.
type Identity struct {
	ID     string // The same in every copy of the message, and in no other.
	Entity string // The key of the document that it changes.
}

// Config says what a handler does, and with which stores. S is the entity's state,
// as encoding/json encodes it; the first message of an entity gets the zero S.
type Config[S any] struct {
	// Name tells this handler's ids from those of others in the same stores. Don't
	// change it: under another name every message is new. Without "/". Required.
	Name      string
	Documents Documents        // Required.
	Processed Processed        // Required.
	Publisher broker.Publisher // Takes what Apply returns. Required.
	// Apply changes the entity because of a message, and returns the messages to
	// publish. Topic and Key are required; without an ID they get one. After an
	// error or a panic nothing is saved or published. It can be called more than
	// once for a message, but only one call's results are ever saved or published;
	// what it does elsewhere is its own affair. Required.
	Apply func(ctx context.Context, entity *S, m broker.Message) ([]broker.Message, error)
	// Identify says which message it is. Defaults to Message.ID, and Message.Key
	// for the entity.
	Identify func(m broker.Message) (Identity, error)
	// Attempts is how often Handle tries when others change the document meanwhile,
	// with short pauses that get longer, before it returns ErrConflict. Defaults to 5.
	Attempts int
}

func (c Config[S]) validate() error {
	var errs []error
	missing := func(is bool, what string) {
		if is {
			errs = append(errs, fmt.Errorf("dedup: Config.%s", what))
		}
	}
	missing(c.Name == "" || strings.Contains(c.Name, "/"), `Name is empty or has a "/" in it: give the handler a name that stays`)
	missing(c.Documents == nil, "Documents is missing: give it a store of documents, such as natskv's")
	missing(c.Processed == nil, "Processed is missing: give it a store of ids, such as natskv's")
	missing(c.Publisher == nil, "Publisher is missing: give it a broker")
	missing(c.Apply == nil, "Apply is missing: say what a message does to its entity")
	missing(c.Attempts < 0, "Attempts is negative: set it to 1 or more, or leave it out for 5")
	return errors.Join(errs...)
}

// Handler handles messages once. Make it with [New]. It keeps nothing between
// calls, so any number of handlers and processes may share the stores.
type Handler[S any] struct{ cfg Config[S] }

// New makes a handler. It doesn't use the stores.
func New[S any](cfg Config[S]) (*Handler[S], error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Attempts == 0 {
		cfg.Attempts = 5
	}
	if cfg.Identify == nil {
		cfg.Identify = func(m broker.Message) (Identity, error) { return Identity{ID: m.ID, Entity: m.Key}, nil }
	}
	return &Handler[S]{cfg: cfg}, nil
}

// Handle returns nil when the message has had its effect, now or before, and what
// it led to is published: only then is it to be acknowledged. After an error it is
// to be delivered again, by whomever. With ErrUnidentified, ErrTooLarge and
// ErrBroken that doesn't help until somebody has seen to it; nothing was done. Any
// other error may have come after the entity was saved: don't drop such a message,
// or what it led to stays unpublished.
func (h *Handler[S]) Handle(ctx context.Context, m broker.Message) error {
	identity, err := h.cfg.Identify(m)
	switch {
	case err != nil:
		return fmt.Errorf("dedup: %s: %w: topic %q, key %q, id %q: %w", h.cfg.Name, ErrUnidentified, m.Topic, m.Key, m.ID, err)
	case identity.ID == "":
		return fmt.Errorf("dedup: %s: %w: topic %q, key %q: its id is empty: have its sender set one, or find it in Config.Identify", h.cfg.Name, ErrUnidentified, m.Topic, m.Key)
	case identity.Entity == "":
		return fmt.Errorf("dedup: %s: %w: topic %q, id %q: the key of its entity is empty: have its sender set one, or find it in Config.Identify", h.cfg.Name, ErrUnidentified, m.Topic, m.ID)
	case !utf8.ValidString(identity.ID):
		return fmt.Errorf("dedup: %s: %w: topic %q, id %q: it is not UTF-8: encode it in Config.Identify", h.cfg.Name, ErrUnidentified, m.Topic, identity.ID)
	}
	for attempt := 1; ; attempt++ {
		err := h.try(ctx, h.cfg.Name+"/"+identity.ID, identity.Entity, m)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("dedup: %s: message %s of entity %s: %w", h.cfg.Name, identity.ID, identity.Entity, err)
		if !errors.Is(err, ErrConflict) || attempt >= h.cfg.Attempts || !pause(ctx, attempt) {
			return err
		}
	}
}

// try goes through the steps once.
func (h *Handler[S]) try(ctx context.Context, id, entity string, m broker.Message) error {
	doc, err := load[S](ctx, h.cfg.Documents, entity)
	if err != nil {
		return err
	}
	processed, err := h.cfg.Processed.Has(ctx, id)
	if err != nil {
		return fmt.Errorf("ask whether it is processed: %w", err)
	}
	if processed {
		return doc.forget(ctx, id) // Whoever added the id may have died before this.
	}
	if _, saved := doc.Outbox[id]; !saved {
		if err := h.apply(ctx, doc, id, m); err != nil {
			return err
		}
	}
	for wave := range waves(doc.Outbox[id]) {
		if err := h.cfg.Publisher.Publish(ctx, wave); err != nil {
			return fmt.Errorf("saved, publish what it led to: %w", err)
		}
	}
	if err := h.cfg.Processed.Add(ctx, id); err != nil {
		return fmt.Errorf("published, add it to the processed: %w", err)
	}
	return doc.forget(ctx, id)
}

func (h *Handler[S]) apply(ctx context.Context, doc *document[S], id string, m broker.Message) error {
	messages, err := protect(func() ([]broker.Message, error) { return h.cfg.Apply(ctx, &doc.State, m) })
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	out, err := outgoing(messages)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	doc.Outbox[id] = out
	return doc.save(ctx)
}

func protect(f func() ([]broker.Message, error)) (messages []broker.Message, err error) {
	defer func() {
		if v := recover(); v != nil {
			messages, err = nil, fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f()
}

// pause says whether it is to be tried again: ctx isn't done.
func pause(ctx context.Context, attempt int) bool {
	t := time.NewTimer(rand.N(10 * time.Millisecond << min(attempt, 7)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
