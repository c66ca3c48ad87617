package sqlite

import (
	"time"

	"github.com/waybill-go/waybill/uow"
)

// SetWriterTimeout shortens the wait for the writer.
func SetWriterTimeout(p uow.Provider, d time.Duration) { p.(*provider).writer.timeout = d }

// SetNestedTimeout shortens the wait inside another unit's function.
func SetNestedTimeout(p uow.Provider, d time.Duration) { p.(*provider).writer.nested = d }

// Waiting is how many wait for the writer.
func Waiting(p uow.Provider) int {
	g := &p.(*provider).writer.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.urgent) + len(g.waiting)
}

// IsOpen says whether the writer's connection is open.
func IsOpen(p uow.Provider) bool { return p.(*provider).writer.conn != nil }
