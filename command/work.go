package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/durations"
	"github.com/waybill-go/waybill/uow"
)

// work is one command that is handled.
type work struct {
	*bound
	command any
	key     string // its own, as KeyedBy says
	version int64  // that IfVersion demands
	once    string // its idempotency key
	// deadline is its own, and late says that it was over before the key was used.
	deadline time.Time
	late     bool
	digest   string
	// asWritten is the digest that builds of before have stored: of all fields, in the
	// order of the Go type.
	asWritten string
}

type workKey struct{}

func (h *Handlers) prepare(b *bound, command any, o options) (*work, error) {
	w := &work{bound: b, command: command, key: b.Key(command), version: o.version, once: o.key, deadline: o.deadline}
	if b.byKey && w.key == "" {
		return nil, fmt.Errorf("command: %s has no key, so its aggregate is unknown: set the field that domain.KeyedBy names", b.WireName())
	}
	if w.once == "" {
		return w, nil
	}
	_, data, err := h.cfg.Units.Domain().EncodeCommand(command)
	if err != nil {
		return nil, err
	}
	w.asWritten = digestOf(data)
	if data, err = said(data); err != nil {
		return nil, err
	}
	w.digest = digestOf(data)
	return w, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// said is what a command says, whatever its Go type has beside: fields in the order of
// their names, and none that is empty. A build whose command has a field more makes the
// same of a request that doesn't have it, so one that is repeated across a deployment is
// known again.
func said(data []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	left, _ := withoutEmpty(value)
	return json.Marshal(left)
}

// withoutEmpty takes the fields out that are empty, and says whether something is left.
func withoutEmpty(value any) (left any, some bool) {
	switch v := value.(type) {
	case nil:
		return v, false
	case bool:
		return v, v
	case string:
		return v, v != ""
	case json.Number:
		return v, v != "0"
	case []any:
		for i := range v { // A place in a list says something, whatever is there.
			v[i], _ = withoutEmpty(v[i])
		}
		return v, len(v) > 0
	case map[string]any:
		for name, field := range v {
			if kept, some := withoutEmpty(field); some {
				v[name] = kept
			} else {
				delete(v, name)
			}
		}
		return v, len(v) > 0
	}
	return value, true
}

// once runs the handler in the unit of ctx, unless its idempotency key is known.
//
// The key's row is the first thing that the unit writes: whoever comes second waits
// there. If the first one commits, the second finds the row and what was returned; if
// it rolls back, the second has the row.
func (h *Handlers) once(ctx context.Context, w *work) (result, error) {
	ctx = context.WithValue(ctx, workKey{}, w)
	if w.once == "" {
		return w.run(ctx)
	}
	db, err := uow.DB(ctx)
	if err != nil {
		return result{}, err
	}
	meta, _ := domain.MetadataFrom(ctx)
	tenant := domain.OriginFrom(ctx).TenantID // uow.Config.Enrich may know it only
	after := dbtime.In(db.Dialect(), h.cfg.KeyRetention)
	for {
		inserted, err := db.NewRaw("INSERT INTO command_keys (tenant, type, key, digest, command_id, expires_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, type, key) DO NOTHING",
			tenant, w.Name, w.once, w.digest, meta.ID, bun.Safe(after)).Exec(ctx)
		if err != nil {
			return result{}, fmt.Errorf("command: store the idempotency key: %w", err)
		}
		if n, err := inserted.RowsAffected(); err == nil && n > 0 {
			break
		}
		if r, err := h.known(ctx, db, tenant, w); !errors.Is(err, sql.ErrNoRows) {
			return r, err
		}
		// PurgeKeys has removed it between the two statements.
	}
	if o := (options{deadline: w.deadline}); o.expired(domain.Now(ctx)) {
		w.late = true
		return result{}, &ExpiredError{Type: w.WireName(), Deadline: w.deadline}
	}
	r, err := w.run(ctx)
	if err != nil || !w.returns {
		return r, err
	}
	stored, err := json.Marshal(r.value)
	if err != nil {
		return r, fmt.Errorf("command: the result of %s can't be stored with its idempotency key: %w", w.WireName(), err)
	}
	return r, uow.Exec(ctx, "UPDATE command_keys SET result = ? WHERE tenant = ? AND type = ? AND key = ?", string(stored), tenant, w.Name, w.once)
}

// known is the result of the command that has used the key.
func (h *Handlers) known(ctx context.Context, db bun.IDB, tenant string, w *work) (result, error) {
	var digest string
	var stored []byte
	err := db.NewRaw("SELECT digest, result FROM command_keys WHERE tenant = ? AND type = ? AND key = ?", tenant, w.Name, w.once).Scan(ctx, &digest, &stored)
	switch {
	case err != nil:
		return result{}, fmt.Errorf("command: look the idempotency key up: %w", err)
	case digest != w.digest && digest != w.asWritten:
		return result{}, &KeyReusedError{Key: w.once, Type: w.WireName()}
	}
	return result{known: true, stored: stored}, nil
}

// errEnded is how a handler failed that didn't return. What it panicked with is the caller's, or
// in the message's dead letter.
var errEnded = errors.New("command: the handler panicked, or ended its goroutine (runtime.Goexit)")

// run calls the handler, for as long as it may take.
func (w *work) run(ctx context.Context) (result, error) {
	limit := fmt.Errorf("command: the handler of %s took longer than %v (command.Timeout)", w.WireName(), w.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, limit)
	defer cancel()
	began, returned := time.Now(), false
	defer func() { // also on a panic
		now := time.Now()
		w.took.Add(now, now.Sub(began))
		if !returned { // and nobody who called it can count
			w.counters.count(errEnded)
		}
	}()
	value, err := w.call(ctx, w.command)
	returned = true
	if err != nil && errors.Is(context.Cause(ctx), limit) {
		err = errors.Join(limit, err)
	}
	return result{value: value, returned: w.returns}, err
}

// result is what a handler returned, or what is stored of that.
type result struct {
	value    any
	returned bool // value, which may be nil
	known    bool // the command was done before, and stored is of that
	stored   []byte
}

func as[R any](r result) (R, error) {
	var out R
	if r.known && r.stored == nil {
		return out, fmt.Errorf("command: it is done, under its idempotency key, and the handler of that build returned nothing: there is no %v to return; don't ask again with another key", reflect.TypeFor[R]())
	}
	if r.value == nil && r.stored == nil && !r.returned {
		return out, fmt.Errorf("command: the handler returns nothing, but %v was requested: create it with command.Returns, or call Do", reflect.TypeFor[R]())
	}
	if r.stored != nil {
		if err := json.Unmarshal(r.stored, &out); err != nil {
			return out, fmt.Errorf("command: it is done, and what is stored with its idempotency key is no %v: don't ask again with another key: %w", reflect.TypeFor[R](), err)
		}
		return out, nil
	}
	out, ok := r.value.(R)
	if !ok && r.value != nil { // nil is one that R, an interface, has
		return out, fmt.Errorf("command: the handler returns %T, but %v was requested", r.value, reflect.TypeFor[R]())
	}
	return out, nil
}

// counters are of one command, since the process began.
type counters struct {
	done, refused, failed, expired, stopped atomic.Int64

	failure atomic.Pointer[Failure]
	took    durations.Counter
}

// count notes how an attempt at the command ended.
func (w *work) count(err error) {
	if w.late {
		w.expired.Add(1)
		return
	}
	w.counters.count(err)
}

func (c *counters) count(err error) {
	switch {
	case err == nil:
		c.done.Add(1)
	case Refused(err):
		c.refused.Add(1)
	default:
		c.failed.Add(1)
		c.failure.Store(&Failure{Error: dberr.Clip(err.Error()), At: time.Now()})
	}
}

// Count is how commands of one type ended in this process: handled by Do or as
// messages.
type Count struct {
	Command string // "ConfirmLoan"
	Type    string // of its messages, "Library.ConfirmLoan.v1"
	// Done took effect, or had before. Refused were declined, see [Refuse]. Failed is how
	// often a handler failed: a message may have failed several times. Expired came too
	// late, see [Before].
	Done, Refused, Failed, Expired int64
	// Stopped are timers that were stopped or moved while their message was on its way.
	Stopped int64
	// LastFailure is nil if none has failed yet.
	LastFailure *Failure
	// Took is how long the handler took, each time that it ran, whatever came of it.
	// Lately is estimated for the last minute, and Ever for all since the process began:
	// nil if it didn't run.
	Took         Durations
	Lately, Ever *Quantiles
}

// Failure is why a command failed, and when.
type Failure struct {
	Error string
	At    time.Time
}

type (
	// Durations are how long handlers took, for a histogram.
	Durations = durations.Total
	// Quantiles are how long half of them took at most, and 99 in 100.
	Quantiles = durations.Quantiles
)

// Counts returns the counts of all commands, by name.
func (h *Handlers) Counts() []Count {
	var all []Count
	now := time.Now()
	for _, t := range h.cfg.Units.Domain().Commands() {
		for _, b := range h.byType {
			if b.CommandType == t {
				all = append(all, Count{
					Command: t.ShortName(), Type: t.WireName(), Done: b.done.Load(), Refused: b.refused.Load(), Failed: b.failed.Load(), Expired: b.expired.Load(),
					Stopped: b.stopped.Load(), LastFailure: b.failure.Load(), Took: b.took.Total(), Lately: b.took.Lately(now), Ever: b.took.Ever(),
				})
			}
		}
	}
	return all
}

// PurgeKeys removes idempotency keys that may be forgotten, at most limit of them, and
// says how many. An engine calls it.
func PurgeKeys(ctx context.Context, db *bun.DB, limit int) (int64, error) {
	done, err := db.NewRaw("DELETE FROM command_keys WHERE (tenant, type, key) IN (SELECT tenant, type, key FROM command_keys WHERE expires_at < ? ORDER BY expires_at LIMIT ?)",
		bun.Safe(dbtime.Now(db.Dialect())), limit).Exec(ctx)
	if err != nil {
		return 0, fmt.Errorf("command: remove idempotency keys: %w", err)
	}
	return done.RowsAffected()
}
