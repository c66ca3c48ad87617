package relay

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// LaneID is a lane's number in its schema: of one outbox and one target.
type LaneID int16

// MemberID is a process's life in a lane. A number is never used twice, even in a database that is restored.
type MemberID int64

// QueueRow is what looks and fetches read of an undelivered event.
type QueueRow struct {
	Part   int
	Seq    int64
	Key    int64 // outbox.KeyOf: hash of target, topic, category and partition key. So a key is of one topic and one partition.
	Topic  int64 // outbox.TopicHash
	Class  int8  // -1, 0, 1: the sign of the priority
	Bytes  int   // of body, key and headers, about
	Losses int
	Waits  bool // held, or due later: it can't go on now. What is due by now doesn't wait.
}

// RowRef names a queue row. Seq alone would do; with the others there is no index of
// which a database knows only a part.
type RowRef struct {
	Part int
	Seq  int64
	Key  int64
}

// PartLow is a partition and the seq that a look begins behind.
type PartLow struct {
	Part int
	Low  int64
}

// Claimed is a row with its body, as a claim reads it: of [outbox.Row] what its message
// is made of, and its partition.
type Claimed struct {
	outbox.Row

	Seq       int64
	KeyHash   int64 // as QueueRow.Key
	Attempts  int   // that were paid so far
	Losses    int
	Waits     bool // by now: it ends its key's run
	CreatedAt time.Time
	Waited    time.Duration // from CreatedAt to this claim, by the database's clock
}

// Ref names the row.
func (c Claimed) Ref() RowRef { return RowRef{c.Partition, c.Seq, c.KeyHash} }

// Store is what the relay needs of a database. Each method is a transaction of
// its own, and none is bound to a connection.
type Store interface {
	// Lanes makes sure that targets have a number and their partitions, without
	// waiting for whoever writes these rows. ids are in the order of targets.
	Lanes(ctx context.Context, targets []string) (ids []LaneID, partitions int, err error)

	// Join makes a member of each lane, in one statement. Where the number is not, or no longer, the
	// target's, there is 0 in its place.
	Join(ctx context.Context, name string, lanes []Joining, lease time.Duration) ([]MemberID, error)
	// Renew prolongs leases, in one durable statement. Who is missing in its answer is dead.
	Renew(ctx context.Context, renewals []Renewal, lease time.Duration) ([]Renewed, error)
	// Take makes at most n free partitions m's own, in random order, without waiting for
	// any. It locks m's row first and takes nothing for a member that is gone [TAKEBLIND].
	Take(ctx context.Context, m MemberID, lane LaneID, n int) (parts []int, err error)
	// Release frees those of parts that are m's.
	Release(ctx context.Context, m MemberID, lane LaneID, parts []int) error
	// Reap ends a member whose lease has passed, or any if dead, its process being proven
	// dead: its tokens go, their rows have a loss, its partitions are free. Done is false
	// if there was nothing to end, or if there are claims of transactions to decide first:
	// then it has only begun. The member claims, takes and renews nothing more; what it has
	// stays its own, and it may still settle.
	Reap(ctx context.Context, m MemberID, dead bool) (Reaped, error)
	// Finish ends a member whose transactions are decided.
	Finish(ctx context.Context, m MemberID) (Reaped, error)
	// Leave ends members that have nothing in hand. Tokens that are left all the same are
	// handled as in a reap.
	Leave(ctx context.Context, members []MemberID) error

	// Look reads, of each partition, at most limit rows above its low, by (part, seq).
	Look(ctx context.Context, lane LaneID, parts []PartLow, limit int) ([]QueueRow, error)
	// Fetch reads at most limit rows of a key, from a seq on, by seq.
	Fetch(ctx context.Context, lane LaneID, key, from int64, limit int) ([]QueueRow, error)
	// Due reads rows of parts whose time has come, by (due_at, seq), from behind after on.
	// next is where to go on, zero at the end.
	Due(ctx context.Context, lane LaneID, parts []int, after DueAt, limit int) (rows []DueRow, next DueAt, err error)
	// First reads, of each partition, at most limit rows of class 1 above its low.
	First(ctx context.Context, lane LaneID, parts []PartLow, limit int) ([]QueueRow, error)

	// Claim locks the member's row, inserts the token and reads what is still queued of
	// the rows.
	Claim(ctx context.Context, c ClaimRequest) (Claim, error)
	// LookAndClaim is a look, and the claim of all that it finds, with nothing between. There is
	// no claim if that is more than is allowed, or has a row that waits or has a loss, or a full
	// page, behind which a higher class may be.
	LookAndClaim(ctx context.Context, r LookRequest) (Looked, error)
	// Settle deletes the token and, only if it was there, does what s says, in one
	// transaction. Nothing changed if it was not known. Without rows it hands back.
	Settle(ctx context.Context, s Settlement) (known bool, err error)

	// Poll is what a process asks while idle, in one round trip. Its lanes are in the
	// order of the argument.
	Poll(ctx context.Context, lanes []LaneID) (Polled, error)
	// Horizon reads the last seq that was drawn, and then who may still bring lower ones.
	Horizon(ctx context.Context) (HorizonSample, error)
}

// Joining is a lane that a process joins, and whose it is: a database that was restored may have
// given its number to another target, whose rows are not for this process's broker.
type Joining struct {
	Lane   LaneID
	Target string
}

// Renewal is what a member says of itself.
type Renewal struct {
	Member  MemberID
	Target  string // of its lane; where that has another name, or none any more, it is dead
	Healthy bool
	Trouble string // for people, while it is sick; "" then says that it tries with one partition
	Broker  outbox.BrokerIdentity
}

// Renewed is a member that lives, with all that is its own.
type Renewed struct {
	Member MemberID
	Parts  []int
}

// Reaped is what a reap found.
type Reaped struct {
	Parts, Rows int // freed partitions; rows that have a loss more
	Done        bool
	Undecided   []Token // claims of transactions, by n
}

// Token is a claim of a transaction, see [slotOf]. Its rows are all that were claimed, by
// seq, whether they are still queued or not.
type Token struct {
	N    int64
	Rows []RowRef
}

// DueAt is a place in the index on due_at. The zero value is its beginning.
type DueAt struct {
	At  time.Time
	Seq int64
}

// DueRow is a row whose time has come.
type DueRow struct {
	Part       int
	Seq        int64
	Key, Topic int64
}

// ClaimRequest asks for rows.
type ClaimRequest struct {
	Member  MemberID
	Lane    LaneID
	N       int64 // the token's number; the process counts
	Rows    []RowRef
	Durable bool    // a row has a loss: the token must survive the server
	Forget  []int64 // numbers of claims that were not answered: their tokens go
}

// Claim is the answer to a [ClaimRequest].
type Claim struct {
	Alive bool      // the member's row was there. If not, nothing is claimed.
	Rows  []Claimed // in the order of seq, without those that are gone
}

// LookRequest asks for what partitions have, and for the claim of it.
type LookRequest struct {
	Member MemberID
	Lane   LaneID
	N      int64 // the token's number, as in a [ClaimRequest]
	Parts  []PartLow
	Limit  int // rows of each partition, above 0
	Rows   int // of all partitions, and their bytes, that may be claimed
	Bytes  int
}

// Looked is the answer to a [LookRequest].
type Looked struct {
	Found []QueueRow // by (part, seq)
	Claim Claim      // of all that was found; not alive: there is none
}

// Claim is the request for what was found; ok is false if that isn't to be claimed.
func (r LookRequest) Claim(found []QueueRow) (c ClaimRequest, ok bool) {
	c = ClaimRequest{Member: r.Member, Lane: r.Lane, N: r.N}
	bytes := 0
	for i, row := range found {
		full := i+1 >= r.Limit && found[i+1-r.Limit].Part == row.Part
		if bytes += row.Bytes; row.Waits || row.Losses > 0 || full {
			return c, false
		}
		c.Rows = append(c.Rows, RowRef{row.Part, row.Seq, row.Key})
	}
	return c, len(found) > 0 && len(found) <= r.Rows && bytes <= r.Bytes
}

// Settlement is what a call's answers mean.
type Settlement struct {
	Member MemberID
	Lane   LaneID
	N      int64

	Published []RowRef // acknowledged: they leave the queue and are logged
	Retries   int      // of Published, Failed and Abandoned: those that were not a first attempt; for signals of the process
	Failed    []Failure
	Abandoned []Abandonment
	Lost      []RowRef // the adapter panicked over them: they have a loss more, and stay
	Delete    bool     // retention 0: bodies of Published go too, unless a target is joining
	Durable   bool     // synchronous_commit is on
}

// Failure is a row that stays queued and waits. Its losses are cleared.
type Failure struct {
	RowRef

	Attempts int           // paid, with this one
	DueIn    time.Duration // from the database's clock on; 0 if Held
	Class    string
	Error    string
	Held     bool // given up under hold: it waits for an operator
}

// Abandonment is a row that leaves the queue undelivered. The same statement
// makes the row behind it of its key due [SKIPNODUE].
type Abandonment struct {
	RowRef

	Class          string
	Error          string
	Attempts       int
	Losses         int
	MaybeDelivered bool // the last attempt's outcome is unknown
}

// Polled is the answer to a poll.
type Polled struct {
	Last  int64     // the sequence's last value
	Now   time.Time // by the database's clock
	Lanes []PolledLane
}

// PolledLane is a lane's part of a poll.
type PolledLane struct {
	NextDue *time.Duration // until the earliest due_at, not positive if it has come; nil: none
	Members []MemberState
	Free    int // partitions of nobody
}

// MemberState is a member as others see it.
type MemberState struct {
	ID      MemberID
	Name    string
	Healthy bool
	Trial   bool      // not healthy, but without trouble: it has one partition to try
	Expired bool      // its lease has passed
	Until   time.Time // when its lease ends, by the database's clock
	Parts   int
}

// HorizonSample is what the horizon is made of.
type HorizonSample struct {
	Last    int64    // seq that was drawn, read before Writers
	Writers []string // transactions that have outbox_messages locked for writing; nil on SQLite
}
