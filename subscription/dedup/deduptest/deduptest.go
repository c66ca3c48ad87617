// Package deduptest is the contract of the stores of package dedup, and a store in
// memory for tests.
package deduptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/suitetest"
	"github.com/waybill-go/waybill/subscription/dedup"
)

// wait bounds every check.
const wait = time.Minute

// names are what keys and ids may be like.
var names = []string{"plain", "with space", "a.b", ".", "*", ">", "a/b", "a=b", "=20", "A", "a", "schlüssel-☂", "\x00", "\xff", "a\nb", "$", " "}

// RunDocuments checks a store of documents, as subtests of t. Each call of open
// gives one more client of the same store, which may hold other keys than the
// suite's. Of each subtest that fails the log says its contract, what breaks without
// it, and what to do.
func RunDocuments(t *testing.T, open func(t *testing.T) dedup.Documents) {
	for name, check := range documents {
		suitetest.Check(t, name, check.contract, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			require.NoError(t, check.run(ctx, open(t), open(t)))
		})
	}
}

// CheckDocuments says what is wrong with a store of documents, of which one and other
// are clients: each check of [RunDocuments] that fails, by its name.
func CheckDocuments(ctx context.Context, one, other dedup.Documents) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(documents)) {
		check := documents[name]
		if err := check.run(ctx, one, other); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w\n%s", name, err, check.contract))
		}
	}
	return errors.Join(errs...)
}

// RunProcessed checks a store of processed ids, as subtests of t. Each call of
// open gives one more client of the same store.
func RunProcessed(t *testing.T, open func(t *testing.T) dedup.Processed) {
	suitetest.Check(t, "Contract", processed, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		require.NoError(t, CheckProcessed(ctx, open(t), open(t)))
	})
}

// CheckProcessed says what is wrong with a store of processed ids, of which one
// and other are clients. It refuses stores that remember a no, for one client or
// for all of them.
func CheckProcessed(ctx context.Context, one, other dedup.Processed) error {
	run := uuid.NewString()
	ask := func(client dedup.Processed, who, id string, want bool) error {
		has, err := client.Has(ctx, id)
		if err != nil {
			return fmt.Errorf("has %q: %w", id, err)
		}
		if has != want {
			return fmt.Errorf("has %q says %v to the client that %s, want %v", id, has, who, want)
		}
		return nil
	}
	// Many times: a replica that lags behind is right now and then.
	for i := range 100 {
		id := fmt.Sprintf("%s-%d", run, i)
		adds, asks := one, other
		if i%2 == 1 {
			adds, asks = other, one
		}
		err := errors.Join(
			ask(adds, "adds it next", id, false), ask(asks, "doesn't", id, false),
			adds.Add(ctx, id),
			ask(asks, "was told no before another added it", id, true), ask(adds, "was told no and then added it", id, true),
			adds.Add(ctx, id), asks.Add(ctx, id),
			ask(asks, "added it again", id, true),
		)
		if err != nil {
			return fmt.Errorf("a negative read, then a write, then a read: %w", err)
		}
	}
	for i, name := range names {
		if err := one.Add(ctx, run+name); err != nil {
			return fmt.Errorf("add %q: %w", run+name, err)
		}
		for j, later := range names {
			if err := ask(other, "looks for names", run+later, j <= i); err != nil {
				return err
			}
		}
	}
	if one.Add(ctx, "") == nil {
		return errors.New("add: the empty id was taken")
	}
	if _, err := one.Has(ctx, ""); err == nil {
		return errors.New("has: the empty id was taken")
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if one.Add(done, run+"late") == nil {
		return errors.New("add: no error with a context that is done")
	}
	if _, err := one.Has(done, run); err == nil {
		return errors.New("has: no error with a context that is done: nobody has said no")
	}
	return nil
}

func emptyKey(ctx context.Context, one, _ dedup.Documents) error {
	if _, _, err := one.Get(ctx, ""); err == nil {
		return errors.New("get: the empty key was taken")
	}
	if _, err := one.Swap(ctx, "", []byte("x"), ""); err == nil {
		return errors.New("swap: the empty key was taken")
	}
	return nil
}

func doneContext(ctx context.Context, one, _ dedup.Documents) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := one.Get(ctx, "x"); err == nil {
		return errors.New("get: no error")
	}
	if _, err := one.Swap(ctx, "x", []byte("x"), ""); err == nil || errors.Is(err, dedup.ErrConflict) {
		return errors.New("swap: no error, or a conflict")
	}
	return nil
}

func missing(ctx context.Context, one, _ dedup.Documents) error {
	value, revision, err := one.Get(ctx, uuid.NewString())
	if value != nil || revision != "" {
		return fmt.Errorf("get: %q at revision %q", value, revision)
	}
	return err
}

func createdOnce(ctx context.Context, one, other dedup.Documents) error {
	key := uuid.NewString()
	if _, err := one.Swap(ctx, key, []byte("first"), ""); err != nil {
		return err
	}
	_, err := other.Swap(ctx, key, []byte("second"), "")
	if err := refused(err, "what is there was created again"); err != nil {
		return err
	}
	return holds(ctx, other, key, "first")
}

func concurrentUpdateFails(ctx context.Context, one, other dedup.Documents) error {
	key := uuid.NewString()
	if _, err := one.Swap(ctx, key, []byte("0"), ""); err != nil {
		return err
	}
	_, seen, err := one.Get(ctx, key)
	if err != nil {
		return err
	}
	_, seenToo, err := other.Get(ctx, key)
	if err != nil {
		return err
	}
	if _, err := replaced(ctx, one, key, "1", seen); err != nil {
		return err
	}
	_, err = other.Swap(ctx, key, []byte("2"), seenToo)
	if err := refused(err, "both changed the same revision"); err != nil {
		return err
	}
	return holds(ctx, one, key, "1")
}

func oldRevisionFails(ctx context.Context, one, _ dedup.Documents) error {
	key, never := uuid.NewString(), uuid.NewString()
	first, err := one.Swap(ctx, key, []byte("same"), "")
	if err != nil {
		return err
	}
	second, err := replaced(ctx, one, key, "same", first)
	if err != nil {
		return err
	}
	if first == second || first == "" || second == "" {
		return fmt.Errorf("revisions %q and %q", first, second)
	}
	_, err = one.Swap(ctx, key, []byte("late"), first)
	if err := refused(err, "an old revision was replaced"); err != nil {
		return err
	}
	_, err = one.Swap(ctx, never, []byte("late"), first)
	if err := refused(err, "what isn't there was replaced"); err != nil {
		return err
	}
	if _, err := replaced(ctx, one, key, "third", second); err != nil {
		return fmt.Errorf("the revision that Swap returned isn't the document's: %w", err)
	}
	return holds(ctx, one, key, "third")
}

func deepCopy(ctx context.Context, one, other dedup.Documents) error {
	key := uuid.NewString()
	given := []byte("state")
	if _, err := one.Swap(ctx, key, given, ""); err != nil {
		return err
	}
	given[0] = 'X'
	for _, client := range []dedup.Documents{one, one, other} {
		got, _, err := client.Get(ctx, key)
		if err != nil {
			return err
		}
		if string(got) != "state" {
			return fmt.Errorf("what was given to the store, or came from it, was changed by another: %q", got)
		}
		got[0] = 'X'
	}
	return nil
}

func keysAreDifferent(ctx context.Context, one, other dedup.Documents) error {
	run := uuid.NewString()
	for _, name := range names {
		if _, err := one.Swap(ctx, run+name, []byte("of "+name), ""); err != nil {
			return fmt.Errorf("key %q: %w", name, err)
		}
	}
	for _, name := range names {
		if err := holds(ctx, other, run+name, "of "+name); err != nil {
			return err
		}
	}
	return nil
}

func bytesAreKept(ctx context.Context, one, other dedup.Documents) error {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, value := range [][]byte{all, bytes.Repeat(all, 1000), {}} {
		key := uuid.NewString()
		if _, err := one.Swap(ctx, key, value, ""); err != nil {
			return err
		}
		if err := holds(ctx, other, key, string(value)); err != nil {
			return err
		}
	}
	return nil
}

// manyWriters appends one byte for each change that succeeded.
func manyWriters(ctx context.Context, one, other dedup.Documents) error {
	const writers, changes = 4, 10
	key := uuid.NewString()
	var running sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		client := one
		if w%2 == 1 {
			client = other
		}
		running.Go(func() {
			for done := 0; done < changes && errs[w] == nil; {
				value, revision, err := client.Get(ctx, key)
				if err == nil {
					_, err = client.Swap(ctx, key, append(value, byte('a'+w)), revision)
				}
				switch {
				case err == nil:
					done++
				case !errors.Is(err, dedup.ErrConflict):
					errs[w] = err
				}
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	value, _, err := one.Get(ctx, key)
	if err != nil {
		return err
	}
	for w := range writers {
		if n := bytes.Count(value, []byte{byte('a' + w)}); n != changes {
			return fmt.Errorf("%d of %d changes of a writer are there", n, changes)
		}
	}
	return nil
}

// refusedFor is how often in a row a store may refuse what it could take.
const refusedFor = 100

// replaced replaces a revision that nobody else does. A store may refuse that for a moment: of
// several replicas the leader of NATS does until it has forgotten the write that it has
// acknowledged.
func replaced(ctx context.Context, in dedup.Documents, key, value, revision string) (next string, err error) {
	for range refusedFor {
		next, err = in.Swap(ctx, key, []byte(value), revision)
		if !errors.Is(err, dedup.ErrConflict) {
			return next, err
		}
		if _, is, gone := in.Get(ctx, key); gone != nil || is != revision {
			return "", errors.Join(err, gone)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return "", errors.Join(err, ctx.Err())
		}
	}
	return "", err
}

// refused says what is wrong if err is no conflict.
func refused(err error, wrong string) error {
	if errors.Is(err, dedup.ErrConflict) {
		return nil
	}
	return errors.Join(errors.New(wrong+", or the error isn't dedup.ErrConflict"), err)
}

func holds(ctx context.Context, in dedup.Documents, key, want string) error {
	got, revision, err := in.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("get %q: %w", key, err)
	}
	if string(got) != want || revision == "" {
		return fmt.Errorf("%q holds %d bytes at revision %q, want %d", key, len(got), revision, len(want))
	}
	return nil
}
