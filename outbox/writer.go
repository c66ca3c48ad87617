package outbox

import (
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
)

// Writer turns events into rows: one for the context's own broker, and one per
// external target that wants the event. Each distinct envelope is built once,
// however many targets share it. A Writer is safe for concurrent use.
type Writer struct {
	Domain          *domain.Domain
	Internal        string // The context's own broker.
	External        []Target
	MaxMessageBytes int // 0: no limit.
}

// Rows returns the rows of events, in their order: for each event the internal
// row first, then the external ones. partitions is the database's count. A body
// over the limit is a [*TooLargeError].
func (w *Writer) Rows(events []Event, partitions int) ([]Row, error) { panic("to be written") }

// Insert is the one statement that stores rows, in their order, on either
// database. It does not run it: the unit of work sends it with its others.
func Insert(rows []Row) schema.QueryAppender { panic("to be written") }
