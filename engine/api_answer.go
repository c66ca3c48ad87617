package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/subscription"
)

const (
	// queryTimeout bounds what a request may ask of the databases.
	queryTimeout = 5 * time.Second
	// changeTimeout bounds a change. It goes by transactions: what was done stays.
	changeTimeout = time.Minute

	// maxTurns is how many requests may ask a database at a time.
	maxTurns = 4

	// What PostgreSQL says of a statement that was ended, and of a lock that was not
	// to be had.
	queryCanceled    = "57014"
	lockNotAvailable = "55P03"
)

// problem is an answer that says what is wrong with the request, or what keeps it
// from being answered.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func badRequest(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Errorf(format, args...).Error()}
}

func notFound(format string, args ...any) error {
	return &problem{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

// answer serves what ask returns, within a time.
func (e *Engine) answer(within time.Duration, ask func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// A server gives no answer as much time as a change may take.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within + writeTimeout))
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		body, err := ask(r.WithContext(ctx))
		if err == nil {
			reply(w, http.StatusOK, body)
			return
		}
		wrong := e.tell(r, err)
		if wrong.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "5")
		}
		refuse(w, wrong.status, wrong.text)
	}
}

// tell is what a client is told of an error. What a database says is for the log:
// it may name hosts and users.
func (e *Engine) tell(r *http.Request, err error) *problem {
	if known, ok := errors.AsType[*problem](err); ok {
		return known
	}
	e.log.Error("a request could not be answered", "path", r.URL.Path, "error", err)
	return &problem{http.StatusInternalServerError, "that went wrong; the engine's log says why"}
}

// interrupted is the error of a change that ended early, after some of it was
// done.
func (e *Engine) interrupted(err error, done int64, dryRun bool) error {
	if err == nil || done == 0 || dryRun {
		return err
	}
	e.log.Warn("a change by an operator ended early", "done", done, "error", err)
	return &problem{http.StatusServiceUnavailable, fmt.Sprintf("it ended early, with %d done; ask again for the others", done)}
}

// explain turns the error of a query into a problem, if it is one that passes or that
// somebody can do something about.
func (d *database) explain(err error) error {
	name := d.provider.Name()
	if _, ok := errors.AsType[*problem](err); ok || err == nil {
		return err
	}
	if schema, ok := errors.AsType[*migrate.SchemaError](err); ok {
		return &problem{http.StatusServiceUnavailable, fmt.Sprintf("provider %q: %v", name, schema)}
	}
	var state interface{ SQLState() string }
	switch coded := errors.As(err, &state); {
	case coded && state.SQLState() == lockNotAvailable:
		return &problem{http.StatusServiceUnavailable, fmt.Sprintf("provider %q: another session has locked one of the rows for long, pg_locks says which; ask again when it has ended", name)}
	case errors.Is(err, context.Canceled), d.unreachable(err), coded && state.SQLState() == queryCanceled:
		return &problem{http.StatusServiceUnavailable, fmt.Sprintf("provider %q doesn't answer in time; /readyz says whether it does at all", name)}
	}
	return d.wrap(err)
}

// inOutbox calls do with the outbox of a database, if its tables are those of this
// build.
func (d *database) inOutbox(ctx context.Context, do func(context.Context, *outboxdb.Store) error) error {
	return d.inTurn(ctx, func(ctx context.Context) error {
		if err := d.store.Check(ctx); err != nil {
			return err
		}
		return do(ctx, d.store)
	})
}

// inInbox calls do with the dead letters of a database, if the tables of
// subscriptions are those of this build.
func (d *database) inInbox(ctx context.Context, do func(context.Context, *subscription.DeadLetters) error) error {
	return d.inTurn(ctx, func(ctx context.Context) error {
		letters := subscription.NewDeadLetters(d.provider)
		if err := letters.Check(ctx); err != nil {
			return err
		}
		return do(ctx, letters)
	})
}

// inTurn waits until few enough others ask the database, whose connections are for
// the work.
func (d *database) inTurn(ctx context.Context, do func(context.Context) error) error {
	select {
	case d.turns <- struct{}{}:
		defer func() { <-d.turns }()
		return d.explain(do(ctx))
	case <-ctx.Done():
		return d.explain(ctx.Err())
	}
}

// hasOutbox says whether some context of the database has one.
func (d *database) hasOutbox() bool { return d.schema.outbox }

func anyDatabase(*database) bool { return true }

// chosen are the databases of a kind: the one that is named, or all.
func (e *Engine) chosen(name string, kind func(*database) bool) ([]*database, error) {
	var found []*database
	var names []string
	for _, d := range e.databases {
		if !kind(d) {
			continue
		}
		names = append(names, d.provider.Name())
		if name == "" || name == d.provider.Name() {
			found = append(found, d)
		}
	}
	if name != "" && len(found) == 0 {
		return nil, notFound("there is no provider %q here; there are %q", name, names)
	}
	return found, nil
}

// only is the database that is named, or the only one.
func (e *Engine) only(name string, kind func(*database) bool) (*database, error) {
	found, err := e.chosen(name, kind)
	if err == nil && len(found) != 1 {
		err = badRequest("provider is missing: there are %d, name one of them", len(found))
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// onePlace checks that the place to go on from is in one database.
func onePlace(after int64, of []*database) error {
	if after > 0 && len(of) > 1 {
		return badRequest("after counts in one database: name it with provider")
	}
	return nil
}

// fromEach asks databases at the same time, and returns answers and errors by
// provider.
func fromEach[T any](of []*database, ask func(*database) (T, error)) (map[string]T, map[string]error) {
	answers, errs := map[string]T{}, map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, d := range of {
		all.Go(func() {
			answer, err := ask(d)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs[d.provider.Name()] = err
				return
			}
			answers[d.provider.Name()] = answer
		})
	}
	all.Wait()
	return answers, errs
}

// first is one of several errors, always the same one.
func first(errs map[string]error) error {
	for _, name := range slices.Sorted(maps.Keys(errs)) {
		return errs[name]
	}
	return nil
}
