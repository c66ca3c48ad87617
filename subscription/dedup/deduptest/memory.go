package deduptest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/waybill-go/waybill/subscription/dedup"
)

// Memory is a store of documents and of processed ids for tests. The zero Memory
// is empty and ready. It is safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	revision  int
	documents map[string]entry
	ids       map[string]bool
}

type entry struct {
	value    []byte
	revision string
}

var (
	_ dedup.Documents = (*Memory)(nil)
	_ dedup.Processed = (*Memory)(nil)
)

var errEmpty = errors.New("deduptest: the key is empty")

// Get implements [dedup.Documents].
func (s *Memory) Get(ctx context.Context, key string) (value []byte, revision string, err error) {
	if err := check(ctx, key); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.documents[key]
	return bytes.Clone(e.value), e.revision, nil
}

// Swap implements [dedup.Documents].
func (s *Memory) Swap(ctx context.Context, key string, value []byte, revision string) (next string, err error) {
	if err := check(ctx, key); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.documents[key].revision != revision {
		return "", dedup.ErrConflict
	}
	if s.documents == nil {
		s.documents = map[string]entry{}
	}
	s.revision++
	next = strconv.Itoa(s.revision)
	s.documents[key] = entry{value: bytes.Clone(value), revision: next}
	return next, nil
}

// Add implements [dedup.Processed].
func (s *Memory) Add(ctx context.Context, id string) error {
	if err := check(ctx, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	s.ids[id] = true
	return nil
}

// Has implements [dedup.Processed].
func (s *Memory) Has(ctx context.Context, id string) (bool, error) {
	if err := check(ctx, id); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id], nil
}

func check(ctx context.Context, key string) error {
	if key == "" {
		return errEmpty
	}
	return ctx.Err()
}
