package outbox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stats is a target's state in the database. Nil is "not known", never zero.
type Stats struct {
	Counts        map[Status]int64 // every status, also those without a row; published includes rows that were removed
	OldestPending *time.Duration   // age of the oldest row that has not left; nil if there is none, and if it is bodiless
	Bodiless      bool             // the oldest row that has not left has no body, or none that this role may see: it can't be published
	Attempts      int64            // at rows that are there or were published; one whose outcome nobody wrote back doesn't count
	Retries       int64            // those of them that were not their row's first
	LeaseOwners   []string         // processes that hold partitions now
	Members       []Member         // processes that publish, or would
	LastError     *string          // of the row that was tried last among those that are failed or abandoned
}

// Member is a process as the database knows it.
type Member struct {
	Name       string `json:"name"`
	Partitions int    `json:"partitions"`
	Healthy    bool   `json:"healthy"` // it reaches the broker; otherwise others that do get its partitions
	Trouble    string `json:"trouble"` // why not, in the broker's words; "" also while it tries again

	Broker *BrokerIdentity `json:"broker"` // which it publishes to; nil: it hasn't said so yet, or is an older build
}

// BrokerIdentity is which broker a process publishes to, as far as that tells.
type BrokerIdentity struct {
	System      string `json:"system"`  // such as "kafka"; "": not known
	Cluster     string `json:"cluster"` // "": not known
	TopicPrefix string `json:"topic_prefix"`
	ExactlyOnce bool   `json:"exactly_once,omitempty"` // it publishes in transactions
}

// Differs says that b and other publish to different topics. What isn't known doesn't differ.
func (b BrokerIdentity) Differs(other BrokerIdentity) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	return differ(b.System, other.System) || differ(b.Cluster, other.Cluster) || b.TopicPrefix != other.TopicPrefix
}

// String is for people.
func (b BrokerIdentity) String() string {
	said := cmp.Or(b.System, "a broker")
	if b.Cluster != "" {
		said += ", cluster " + b.Cluster
	}
	if b.TopicPrefix != "" {
		said += ", topic_prefix " + b.TopicPrefix
	} else {
		said += ", no topic_prefix"
	}
	if b.ExactlyOnce {
		said += ", exactly_once"
	}
	return said
}

// BrokersDiffer says which brokers live processes publish to, and who to which, if those of one
// target differ: what a partition's owner publishes arrives at its own. "": they don't.
func BrokersDiffer(members []Member) string {
	return differing(members, BrokerIdentity.Differs)
}

// ExactlyOnceDiffers says which live processes publish in transactions, and which don't, if there
// are both for one target: what the latter publish can come more than once. "": there aren't.
func ExactlyOnceDiffers(members []Member) string {
	return differing(members, func(a, b BrokerIdentity) bool { return a.ExactlyOnce != b.ExactlyOnce })
}

func differing(members []Member, differ func(a, b BrokerIdentity) bool) string {
	found, by, all := false, map[string][]string{}, []string{}
	for i, m := range members {
		if m.Broker == nil {
			continue
		}
		found = found || slices.ContainsFunc(members[:i], func(o Member) bool { return o.Broker != nil && differ(*m.Broker, *o.Broker) })
		text := m.Broker.String()
		if by[text] == nil {
			all = append(all, text)
		}
		by[text] = append(by[text], m.Name)
	}
	if !found {
		return ""
	}
	for i, text := range all {
		all[i] = fmt.Sprintf("%s (%s)", text, strings.Join(by[text], ", "))
	}
	return strings.Join(all, "; ")
}

// NoStats are those of a target that has neither rows nor partitions.
func NoStats() Stats {
	s := Stats{Counts: map[Status]int64{}}
	for _, status := range Statuses() {
		s.Counts[status] = 0
	}
	return s
}

// RetryRate is the fraction of all attempts that were retries; 0 if there was no
// attempt.
func (s Stats) RetryRate() float64 {
	return retryRate(s.Attempts, s.Retries)
}

func retryRate(attempts, retries int64) float64 {
	if attempts == 0 {
		return 0
	}
	return float64(retries) / float64(attempts)
}

// Owned is a partition of a target, with who publishes it and what it holds.
type Owned struct {
	Target        string     `json:"-"`
	Partition     int        `json:"partition"`
	Owner         *string    `json:"owner"`          // who had its last lease; nil: nobody, or given back
	Fence         int64      `json:"fence"`          // number of that lease
	Until         *time.Time `json:"until"`          // end of that lease; nil: there is none
	Live          bool       `json:"live"`           // the lease is running
	Unfinished    int64      `json:"unfinished"`     // rows that are neither published nor given up
	OldestSeconds *float64   `json:"oldest_seconds"` // age of the oldest of them; nil: none
	Held          int64      `json:"held"`           // rows of them behind which their keys wait
}

// Held is what waits behind held rows.
type Held struct {
	Keys   int64 // whose head is held
	Behind int64 // rows that wait for those
}
