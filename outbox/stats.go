package outbox

import "time"

// Stats is a target's state in the database. Nil is "not known", never zero.
type Stats struct {
	Counts        map[Status]int64 // every status, also those without a row; published includes rows that were removed
	OldestPending *time.Duration   // age of the oldest row that has not left; nil if there is none
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
