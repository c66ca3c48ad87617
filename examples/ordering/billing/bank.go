package billing

import (
	"hash/fnv"
	"strings"
	"time"
)

// Kind is how a customer pays. The bank is made up, and a customer's name says it all,
// so anybody can work out what must become of an order.
type Kind string

// A customer pays at once, unless the name says otherwise: late-7 pays when the time is
// just over, never-7 doesn't, and broke-7 has no credit.
const (
	Prompt Kind = "prompt"
	Late   Kind = "late"
	Never  Kind = "never"
	Broke  Kind = "broke"
)

// KindOf is how a customer pays.
func KindOf(customerID string) Kind {
	name, _, _ := strings.Cut(customerID, "-")
	switch k := Kind(name); k {
	case Late, Never, Broke:
		return k
	default:
		return Prompt
	}
}

// lateAtMost is how long after the time limit late money comes.
const lateAtMost = 300 * time.Millisecond

// lateness is that of an order, by its number.
func lateness(orderID string) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(orderID)) // It can't fail.
	return time.Duration(h.Sum64() % uint64(lateAtMost))
}
