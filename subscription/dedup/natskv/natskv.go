// Package natskv keeps the documents and processed ids of package dedup in NATS
// JetStream key-value buckets.
//
// What package dedup asks of a store holds only for buckets that are read from
// where they are written. NATS makes key-value buckets with "allow direct", which
// lets any replica and any mirror answer a read, with what it has so far: a message
// that was handled a moment ago would not be known, and take effect again. So Open
// makes buckets without it, and refuses those that have it.
//
// Reads and writes then go to the bucket's leader. A leader that was cut off from
// the other replicas may go on answering reads, from what it had, for some seconds
// until it steps down. Whoever reaches only it can't save anything; whoever changes
// over to the new leader between asking for an id and saving the document could,
// and would apply a message again that was handled in these seconds. One server
// (Replicas 1) has no such case.
package natskv

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/subscription/dedup"
)

// Config says where documents and ids are.
type Config struct {
	// Bucket is the name of the bucket for documents. That for the ids of processed
	// messages is Bucket with "-processed" behind. Letters, digits, "-" and "_".
	// Required.
	Bucket string
	// Replicas is the number of servers that keep each new bucket. Defaults to 1.
	Replicas int
	// Remember is for how long a processed id is known, after which a copy of its
	// message takes effect again: longer than any sender, broker or operator may
	// take to bring one. Defaults to for ever. An existing bucket must have the same.
	Remember time.Duration
}

// Store is a pair of buckets. It is safe for concurrent use.
type Store struct {
	documents jetstream.KeyValue
	processed jetstream.KeyValue
	limit     func() int64 // Of one message, in bytes.
}

var (
	_ dedup.Documents = (*Store)(nil)
	_ dedup.Processed = (*Store)(nil)
)

var bucketName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Open makes the buckets that are missing, on disk, and refuses existing ones that
// lose something or may be read from replicas, and one that has something where the
// other is gone. The connection stays the caller's.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	if !bucketName.MatchString(cfg.Bucket) {
		return nil, fmt.Errorf("natskv: bucket is %q: give it a name of letters, digits, - and _", cfg.Bucket)
	}
	if cfg.Replicas < 0 || cfg.Replicas > 5 {
		return nil, fmt.Errorf("natskv: replicas is %d: set it to a number from 1 to 5", cfg.Replicas)
	}
	if cfg.Remember < 0 {
		return nil, fmt.Errorf("natskv: remember is %v: set it to a positive duration, or leave it out for ever", cfg.Remember)
	}
	if err := whole(ctx, js, cfg); err != nil {
		return nil, err
	}
	documents, err := open(ctx, js, cfg.Bucket, cfg.Replicas, 0)
	if err != nil {
		return nil, err
	}
	processed, err := open(ctx, js, cfg.Bucket+"-processed", cfg.Replicas, cfg.Remember)
	if err != nil {
		return nil, err
	}
	return &Store{documents: documents, processed: processed, limit: js.Conn().MaxPayload}, nil
}

// whole refuses one bucket that has something where the other is gone, as an empty one in its
// place would be taken for all that there was.
func whole(ctx context.Context, js jetstream.JetStream, cfg Config) error {
	documents, processed := cfg.Bucket, cfg.Bucket+"-processed"
	// The documents first: who has saved one has made both buckets before.
	saved, used, err := look(ctx, js, documents)
	if err != nil {
		return err
	}
	handled, known, err := look(ctx, js, processed)
	if err != nil {
		return err
	}
	if !saved && known { // or another process has made both meanwhile
		if saved, _, err = look(ctx, js, documents); err != nil {
			return err
		}
	}
	switch {
	case !handled && used:
		ttl := ""
		if cfg.Remember > 0 {
			ttl = " --ttl " + cfg.Remember.String()
		}
		return fmt.Errorf("natskv: bucket %s is gone, and %s has documents: a message that was handled and comes again would take effect twice:"+
			" restore both from backups of one moment; or, if none comes again: nats kv add %[1]s%[3]s && nats stream edit KV_%[1]s --no-allow-direct", processed, documents, ttl)
	case !saved && known:
		return fmt.Errorf("natskv: bucket %s is gone, and %s has ids, whose effects are gone and would not happen again:"+
			" restore both from backups of one moment; or, to begin without either: nats stream rm KV_%[2]s", documents, processed)
	}
	return nil
}

// look says whether a bucket is there, and whether it has something.
func look(ctx context.Context, js jetstream.JetStream, bucket string) (there, used bool, err error) {
	stream, err := js.Stream(ctx, "KV_"+bucket)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return false, false, nil
	case err != nil:
		return false, false, fmt.Errorf("natskv: bucket %s: %w", bucket, err)
	}
	return true, stream.CachedInfo().State.Msgs > 0, nil
}

// gone says which bucket is missing where that is why err happened.
func gone(err error, bucket jetstream.KeyValue) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse) {
		return fmt.Errorf("bucket %s is gone, or has no leader: see nats stream info KV_%[1]s; if it is gone, a restart makes it, or says what helps: %[2]w", bucket.Bucket(), err)
	}
	return err
}

func open(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, age time.Duration) (jetstream.KeyValue, error) {
	name := "KV_" + bucket
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// Not CreateKeyValue, which allows direct reads.
		stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name:              name,
			Subjects:          []string{"$KV." + bucket + ".>"},
			Storage:           jetstream.FileStorage,
			Replicas:          max(replicas, 1),
			MaxMsgsPerSubject: 1,
			MaxAge:            age,
			Duplicates:        min(age, 2*time.Minute), // No longer than MaxAge; 0 is the server's default.
			Discard:           jetstream.DiscardNew,
			AllowRollup:       true,
			DenyDelete:        true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // made meanwhile
			stream, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("natskv: bucket %s: %w", bucket, err)
	}
	if err := judge(stream.CachedInfo().Config, age); err != nil {
		return nil, fmt.Errorf("natskv: bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("natskv: bucket %s: %w", bucket, err)
	}
	return kv, nil
}

// judge says why a bucket can't be used.
func judge(c jetstream.StreamConfig, age time.Duration) error {
	var errs []error
	refuse := func(bad bool, format string, a ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	refuse(c.AllowDirect, "direct reads are allowed, which replicas answer with what is out of date: nats stream edit %s --no-allow-direct", c.Name)
	refuse(c.Mirror != nil || len(c.Sources) > 0, "it is a copy of another, and out of date at times: use the original")
	refuse(c.Storage != jetstream.FileStorage, "it is in memory, and gone with the server: create it again with file storage")
	refuse(c.Discard != jetstream.DiscardNew, "it throws away what is old when it is full: nats stream edit %s --discard new", c.Name)
	refuse(c.MaxAge != age, "it forgets after %v, and %v is wanted (0s: never): nats stream edit %s --max-age %[2]v, or change Remember", c.MaxAge, age, c.Name)
	return errors.Join(errs...)
}

// Get implements [dedup.Documents].
func (s *Store) Get(ctx context.Context, key string) (value []byte, revision string, err error) {
	name, err := encode(key)
	if err != nil {
		return nil, "", err
	}
	entry, err := s.documents.Get(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("natskv: get %q: %w", key, gone(err, s.documents))
	}
	return entry.Value(), strconv.FormatUint(entry.Revision(), 10), nil
}

// Swap implements [dedup.Documents].
func (s *Store) Swap(ctx context.Context, key string, value []byte, revision string) (next string, err error) {
	name, err := encode(key)
	if err != nil {
		return "", err
	}
	var n uint64
	if revision == "" {
		n, err = s.documents.Create(ctx, name, value)
	} else {
		var last uint64
		if last, err = strconv.ParseUint(revision, 10, 64); err != nil {
			return "", fmt.Errorf("natskv: save %q: revision %q is not this store's: %w", key, revision, err)
		}
		n, err = s.documents.Update(ctx, name, value, last)
	}
	switch {
	case errors.Is(err, jetstream.ErrKeyExists), errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return "", fmt.Errorf("natskv: save %q: %w", key, dedup.ErrConflict)
	case errors.Is(err, nats.ErrMaxPayload), answered(err, tooLarge):
		return "", fmt.Errorf("natskv: save %q: %w: %d bytes, the server takes %d with headers, and the bucket may take less (max_msg_size):"+
			" keep less in the entity, or raise max_payload", key, dedup.ErrTooLarge, len(value), s.limit())
	case err != nil:
		return "", fmt.Errorf("natskv: save %q: %w", key, gone(err, s.documents))
	}
	return strconv.FormatUint(n, 10), nil
}

// Add implements [dedup.Processed].
func (s *Store) Add(ctx context.Context, id string) error {
	name, err := encode(id)
	if err != nil {
		return err
	}
	if _, err := s.processed.Put(ctx, name, nil); err != nil {
		return fmt.Errorf("natskv: add %q: %w", id, gone(err, s.processed))
	}
	return nil
}

// Has implements [dedup.Processed].
func (s *Store) Has(ctx context.Context, id string) (bool, error) {
	name, err := encode(id)
	if err != nil {
		return false, err
	}
	_, err = s.processed.Get(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("natskv: look for %q: %w", id, gone(err, s.processed))
	}
	return true, nil
}

const (
	tooLarge = 10054 // JSStreamMessageExceedsMaximumErr
	// maxName keeps a subject well within the 4,096 bytes of a line of the protocol.
	maxName = 2048
)

func answered(err error, code jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == code
}

// encode makes a key of NATS from any string: "=" and two hexadecimal digits
// stand for what such keys can't have.
func encode(key string) (string, error) {
	if key == "" {
		return "", errors.New("natskv: the key is empty")
	}
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '/':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	if b.Len() > maxName {
		return "", fmt.Errorf("natskv: a key of %d bytes, %d as a subject's name: %w, which takes %d", len(key), b.Len(), dedup.ErrTooLarge, maxName)
	}
	return b.String(), nil
}
