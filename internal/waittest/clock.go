package waittest

import (
	"time"
	"unsafe"
)

// Set is a time that was read of the machine's clock, as it is when that has been set meanwhile:
// so much later or, below 0, earlier, in whole seconds. The monotonic clock isn't set. It panics
// if at has no monotonic clock.
func Set(at time.Time, by time.Duration) time.Time {
	// What time.Time is: a bit for the monotonic clock, 33 of seconds, and 30 of nanoseconds.
	inside := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&at)) //nolint:gosec // Nothing else makes such times.
	if inside.wall>>63 == 0 {
		panic("waittest: the time has no monotonic clock")
	}
	inside.wall += uint64(by/time.Second) << 30 //nolint:gosec // It wraps around where that is below 0.
	return at
}
