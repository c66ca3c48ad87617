package deduptest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription/dedup"
	"github.com/waybill-go/waybill/subscription/dedup/deduptest"
)

func TestMemory_C_35_C_36_S0_15_S0_16(t *testing.T) {
	var s deduptest.Memory
	t.Run("Documents", func(t *testing.T) { deduptest.RunDocuments(t, func(*testing.T) dedup.Documents { return &s }) })
	t.Run("Processed", func(t *testing.T) { deduptest.RunProcessed(t, func(*testing.T) dedup.Processed { return &s }) })
}

// caching remembers a no until it adds the id itself.
type caching struct {
	*deduptest.Memory
	mu sync.Mutex
	no map[string]bool
}

func (c *caching) Has(ctx context.Context, id string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.no[id] {
		return false, nil
	}
	has, err := c.Memory.Has(ctx, id)
	c.no[id] = err == nil && !has
	return has, err
}

// forgiving forgets the no of what it adds itself, as caches do that are one
// client's.
type forgiving struct{ caching }

func (c *forgiving) Add(ctx context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.no, id)
	return c.Memory.Add(ctx, id)
}

// replica answers from what the store had before the last id was added.
type replica struct {
	*deduptest.Memory
	mu     sync.Mutex
	behind map[string]bool
	last   string
}

func (r *replica) Add(ctx context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != "" {
		r.behind[r.last] = true
	}
	r.last = id
	return r.Memory.Add(ctx, id)
}

func (r *replica) Has(_ context.Context, id string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behind[id], nil
}

// lossy has no place for what isn't plain.
type lossy struct{ *deduptest.Memory }

var plain = regexp.MustCompile(`[^a-z0-9-]`)

func (l lossy) Add(ctx context.Context, id string) error {
	return l.Memory.Add(ctx, plain.ReplaceAllString(strings.ToLower(id), "_"))
}

func (l lossy) Has(ctx context.Context, id string) (bool, error) {
	return l.Memory.Has(ctx, plain.ReplaceAllString(strings.ToLower(id), "_"))
}

// S0-15, C-35: what isn't read as it was written is refused, by what is wrong.
func TestCheckProcessed_S0_15_C_35_RefusesCachedNegativeReads(t *testing.T) {
	for name, open := range map[string]func() (one, other dedup.Processed, want string){
		"negative reads cached": func() (one, other dedup.Processed, want string) {
			s := &caching{Memory: &deduptest.Memory{}, no: map[string]bool{}}
			return s, s, "negative read"
		},
		"negative reads cached by client": func() (one, other dedup.Processed, want string) {
			s := &deduptest.Memory{}
			return &forgiving{caching{Memory: s, no: map[string]bool{}}}, &forgiving{caching{Memory: s, no: map[string]bool{}}}, "was told no before another added it"
		},
		"replica": func() (one, other dedup.Processed, want string) {
			s := &replica{Memory: &deduptest.Memory{}, behind: map[string]bool{}}
			return s, s, "negative read"
		},
		"ids taken for others": func() (one, other dedup.Processed, want string) {
			s := lossy{&deduptest.Memory{}}
			return s, s, "looks for names"
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, other, want := open()
			require.ErrorContains(t, deduptest.CheckProcessed(t.Context(), one, other), want)
		})
	}
	require.Error(t, deduptest.CheckProcessed(t.Context(), &deduptest.Memory{}, &deduptest.Memory{}), "two stores")
}

// overwriting takes every change for one of the latest revision.
type overwriting struct{ *deduptest.Memory }

func (o overwriting) Swap(ctx context.Context, key string, value []byte, _ string) (string, error) {
	for {
		_, revision, err := o.Get(ctx, key)
		if err != nil {
			return "", err
		}
		next, err := o.Memory.Swap(ctx, key, value, revision)
		if !errors.Is(err, dedup.ErrConflict) {
			return next, err
		}
	}
}

// busy refuses a key for a moment after each write.
type busy struct {
	*deduptest.Memory
	mu    sync.Mutex
	since map[string]int // refusals since the write
}

func (b *busy) Swap(ctx context.Context, key string, value []byte, revision string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, written := b.since[key]; written && n < 3 {
		b.since[key]++
		return "", dedup.ErrConflict
	}
	next, err := b.Memory.Swap(ctx, key, value, revision)
	if err == nil {
		b.since[key] = 0
	}
	return next, err
}

// hashing calls revisions by their content.
type hashing struct {
	*deduptest.Memory
	mu sync.Mutex
}

func (h *hashing) Get(ctx context.Context, key string) ([]byte, string, error) {
	value, revision, err := h.Memory.Get(ctx, key)
	if revision != "" {
		revision = fmt.Sprintf("%x", sha256.Sum256(value))
	}
	return value, revision, err
}

func (h *hashing) Swap(ctx context.Context, key string, value []byte, revision string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, is, err := h.Get(ctx, key)
	if err != nil {
		return "", err
	}
	if is != revision {
		return "", dedup.ErrConflict
	}
	_, own, err := h.Memory.Get(ctx, key)
	if err != nil {
		return "", err
	}
	if _, err := h.Memory.Swap(ctx, key, value, own); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(value)), nil
}

// folding has one document for keys that differ in case.
type folding struct{ *deduptest.Memory }

func (f folding) Get(ctx context.Context, key string) ([]byte, string, error) {
	return f.Memory.Get(ctx, strings.ToLower(key))
}

func (f folding) Swap(ctx context.Context, key string, value []byte, revision string) (string, error) {
	return f.Memory.Swap(ctx, strings.ToLower(key), value, revision)
}

// S0-16, C-36: each way of losing a change is refused by the checks that are about it, and
// by no others; the error says the contract, what breaks and what to do.
func TestCheckDocuments_S0_16_C_36_SaysWhatIsBroken(t *testing.T) {
	for name, is := range map[string]struct {
		store dedup.Documents
		fails []string
		says  string
	}{
		"as it should be":     {&deduptest.Memory{}, nil, ""},
		"busy for a moment":   {&busy{Memory: &deduptest.Memory{}, since: map[string]int{}}, nil, ""},
		"the last one wins":   {overwriting{&deduptest.Memory{}}, []string{"ConcurrentUpdateFails", "CreatedOnce", "OldRevisionFails"}, "what to do: let the store itself compare"},
		"revisions by hash":   {&hashing{Memory: &deduptest.Memory{}}, []string{"OldRevisionFails"}, "not a hash of the content"},
		"keys without a case": {folding{&deduptest.Memory{}}, []string{"KeysAreDifferent"}, "without it: two entities share one state."},
	} {
		t.Run(name, func(t *testing.T) {
			err := deduptest.CheckDocuments(t.Context(), is.store, is.store)
			var fails []string
			if err != nil {
				for _, m := range failed.FindAllStringSubmatch(err.Error(), -1) {
					if m[1] != "OfManyWritersOneWinsEachChange" { // Fails where they happen to meet.
						fails = append(fails, m[1])
					}
				}
				require.ErrorContains(t, err, is.says)
				require.LessOrEqual(t, len(fails), strings.Count(err.Error(), "\ncontract: "))
			}
			require.Equal(t, is.fails, fails, "%v", err)
		})
	}
}

var failed = regexp.MustCompile(`(?m)^([A-Z]\w+): `)
