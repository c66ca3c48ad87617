package outbox

import (
	"fmt"

	"github.com/waybill-go/waybill/internal/dberr"
)

// TooLargeError is a message whose body is over the limit. The unit of work
// that raised it doesn't commit.
type TooLargeError struct {
	Type, AggregateID, Target string
	Size, Limit               int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("outbox: %s of %s is %d bytes for broker %s, over the limit of %d; make the event smaller, or raise max_message_bytes here and at the broker", e.Type, e.AggregateID, e.Size, e.Target, e.Limit)
}

// PartitionsError is a database whose partition count is not the configured one.
type PartitionsError struct{ Have, Want int }

func (e *PartitionsError) Error() string {
	return fmt.Sprintf("outbox: the database has %d partitions, the configuration says %d; the count is fixed by the first migration: configure %d, or leave it out", e.Have, e.Want, e.Have)
}

// TargetsError is a database whose targets for a context are not the configured
// ones.
type TargetsError struct {
	Context string
	Have    *Targets // Nil: the database has none for it.
	Want    Targets
}

func (e *TargetsError) Error() string {
	if e.Have == nil {
		return fmt.Sprintf("outbox: the database does not know yet that context %s sends to %v; run engine.Migrate, or `waybill migrate` with the configuration file", e.Context, e.Want)
	}
	return fmt.Sprintf("outbox: in the database context %s sends to %v, in the configuration to %v; a broker that not all of its processes know misses events: configure %v,"+
		" or stop all its processes and run `waybill migrate --set-targets %s=%v` or engine.SetTargets", e.Context, e.Have, e.Want, e.Have, e.Context, e.Want)
}

// Is says that it is for no fault of what is to be written.
func (e *TargetsError) Is(target error) bool { return target == dberr.ErrMisfit }
