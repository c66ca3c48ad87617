package outbox

import (
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/durations"
)

// LaneStatus is what this process knows of one of its lanes.
type LaneStatus struct {
	Name               string // "outbox-processor-default-to-partner-external"
	Running            bool
	Partitions         int      // held by this process
	InFlight           int      // rows in the broker's hand
	Breaker            string   // "closed", "open" or "half-open"
	OpenTopics         []string // topics that don't answer while others do
	TopicError         string   // what the broker said when the first of OpenTopics stopped to
	Suspects           int      // keys of calls that nobody answered: they are sent in small calls
	Healthy            bool     // this process reaches the broker; otherwise others that do get its partitions
	Trouble            string   // why not; "" also while it tries again with one partition
	Published          int64    // since the start
	PublishedPerSecond float64
	Attempts           int64    // settled since the start; those that cost nothing, as in an outage, don't count
	Retries            int64    // those of them that were not their row's first
	RetryRate          float64  // the second as a fraction of the first
	Stale              int64    // write-backs of rows that came too late and changed nothing
	TakenOver          int64    // rows that another member had claimed and not settled
	OrderBreaks        int64    // rows that the broker stored although it had not stored an earlier one of their key
	Crashes            int64    // parts of the lane, and calls of the broker, that panicked; they go on
	LastCrash          string   // what the last of them said; "": there was none
	Latency            *Latency // of the last minute; nil: nothing was published
	Latencies          Latencies
	Silent             *Silence // other processes that hold partitions and are not heard of; nil: there are none
	Doing              string   // what makes it slow on purpose, such as "probing"; "": nothing does
	LastError          string   // the last that a broker answered, "" after a success; the database's words while there is Database
	// Database is what the database doesn't let it do, over and over; nil: it lets it
	// do everything.
	Database *Trouble
}

// Trouble is something that a database doesn't let somebody do who tries again and
// again.
type Trouble = dberr.Trouble

// Latency is how long rows took from being stored to the broker's acknowledgement.
type Latency = durations.Quantiles

// Latencies are those of all rows since the start.
type Latencies = durations.Total

// Silence is what a lane sees of other processes that hold partitions and don't
// renew their leases: rows of these wait until the leases end.
type Silence struct {
	Partitions int
	Processes  []string  // their names, and what is known of them
	Until      time.Time // when the last of the leases ends, by the database's clock
	For        time.Duration
}

// String is what waits for whom, and until when.
func (s Silence) String() string {
	return fmt.Sprintf("%s until %s, not heard of for %v", names(s.Processes), clock(s.Until), s.For.Round(time.Second))
}

// clock is a time of the day for people, by the database's clock.
func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

// names are some names for people.
func names(all []string) string {
	const most = 3
	if more := len(all) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), more)
	}
	return strings.Join(all, ", ")
}
