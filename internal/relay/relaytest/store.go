// Package relaytest has a store of the relay in memory, whose steps can be told to
// fail, and the suite that it and the databases' stores pass.
package relaytest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// Store is a connection to a database in memory, with faults of its own. Its clock is the
// process's, which is a fake one in a bubble of testing/synctest. It is safe for
// concurrent use.
type Store struct {
	Faults
	*database
}

// Connect is another connection to the same database, as another process has it.
func (s *Store) Connect() *Store { return &Store{database: s.database} }

type database struct {
	mu         sync.Mutex
	partitions int
	seq        int64
	txs        int
	writers    map[string]bool
	member     relay.MemberID
	lanes      []string
	owners     map[relay.LaneID][]relay.MemberID // by partition; 0: nobody's
	members    map[relay.MemberID]*member
	bodies     map[int64]*body
	queue      map[int64]*queued
	tokens     map[token][]relay.RowRef
	log        []Logged
	abandoned  map[int64]relay.Abandonment
	turns      map[string]time.Time

	published   map[int64]bool // all that the log has
	without     map[string]bool
	permutation func(n int) []int
	crashes     bool
	unsaved     []saved // before each change that a crash would undo, the oldest first
}

type member struct {
	lane    relay.LaneID
	name    string
	until   time.Time
	healthy bool
	trouble string
	ended   bool // its reap has begun
	crashed bool // the server has, since it joined
}

type token struct {
	member relay.MemberID
	n      int64
}

type body struct {
	outbox.Row

	seq     int64
	created time.Time
}

type queued struct {
	relay.QueueRow

	lane     relay.LaneID
	attempts int
	held     bool
	due      time.Time
	class    string
	err      string
}

// Logged is what a settle has logged.
type Logged struct {
	Member relay.MemberID
	N      int64
	Seqs   []int64
}

// New is an empty database.
func New(partitions int) *Store {
	return &Store{database: &database{
		partitions: partitions, writers: map[string]bool{}, owners: map[relay.LaneID][]relay.MemberID{}, members: map[relay.MemberID]*member{},
		bodies: map[int64]*body{}, queue: map[int64]*queued{}, tokens: map[token][]relay.RowRef{}, abandoned: map[int64]relay.Abandonment{}, turns: map[string]time.Time{},
		published: map[int64]bool{}, without: map[string]bool{}, permutation: rand.Perm,
	}}
}

// Row is an event of a key, which is also its aggregate.
func Row(target, topic, key string) outbox.Row {
	return outbox.Row{
		ID: uuid.NewString(), MessageID: uuid.NewString(), TargetBroker: target, Stream: "test::thing-" + key, StreamCategory: "test::thing",
		Topic: topic, PartitionKey: key, MessageType: "Test.Happened.v1", AggregateType: "Thing", AggregateID: key, AggregateVersion: 1,
		Payload: []byte("{}"), ContentType: "application/json", OccurredAt: time.Now(),
	}
}

// Tx is a transaction that writes to the outbox. Its rows have their seqs when they are
// written, and are seen when it has committed.
type Tx struct {
	s    *Store
	name string
	rows []*body
}

// Begin begins one.
func (s *Store) Begin() *Tx {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.txs++
	return &Tx{s: s, name: strconv.Itoa(s.txs)}
}

// Insert writes rows and returns their seqs.
func (tx *Tx) Insert(rows ...outbox.Row) (seqs []int64) {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writers[tx.name] = true
	for _, row := range rows {
		s.seq++
		row.Partition = outbox.PartitionOf(row.PartitionKey, s.partitions)
		tx.rows = append(tx.rows, &body{Row: row, seq: s.seq, created: time.Now()})
		seqs = append(seqs, s.seq)
	}
	return seqs
}

// Commit makes its rows visible, and returns the pokes for them.
func (tx *Tx) Commit() (pokes []outbox.Poke) {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writers, tx.name)
	s.keep(true)
	for _, b := range tx.rows {
		s.bodies[b.seq] = b
		s.enqueue(b)
		pokes = append(pokes, outbox.Poke{Target: b.TargetBroker, Partition: b.Partition})
	}
	return pokes
}

func (s *Store) enqueue(b *body) {
	lane := s.lane(b.TargetBroker)
	topic := cmp.Or(b.Topic, outbox.DefaultTopic(b.StreamCategory))
	s.queue[b.seq] = &queued{lane: lane, QueueRow: relay.QueueRow{
		Part: b.Partition, Seq: b.seq, Key: outbox.KeyOf(b.TargetBroker, topic, b.StreamCategory, b.PartitionKey), Topic: outbox.TopicHash(topic),
		Class: int8(cmp.Compare(b.Priority, 0)), Bytes: len(b.Payload) + len(b.PartitionKey) + 300,
	}}
}

// Rollback forgets its rows; their seqs are not used again.
func (tx *Tx) Rollback() {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	delete(tx.s.writers, tx.name)
}

// Insert commits rows.
func (s *Store) Insert(rows ...outbox.Row) []outbox.Poke {
	tx := s.Begin()
	tx.Insert(rows...)
	return tx.Commit()
}

func (s *Store) lane(target string) relay.LaneID {
	i := slices.Index(s.lanes, target)
	if i < 0 {
		s.lanes = append(s.lanes, target)
		i = len(s.lanes) - 1
	}
	id := relay.LaneID(i + 1)
	if s.owners[id] == nil {
		s.owners[id] = make([]relay.MemberID, s.partitions)
	}
	return id
}

// removed has a partition's row in the place of its owner.
const removed = relay.MemberID(-1)

// RemovePartitions removes all rows of partitions, as a TRUNCATE does.
func (s *Store) RemovePartitions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, owners := range s.owners {
		for p := range owners {
			owners[p] = removed
		}
	}
}

// Undelivered are the seqs of the rows that are queued.
func (s *Store) Undelivered() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.queue))
}

// Tokens counts the claims that nobody has settled.
func (s *Store) Tokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens)
}

// Log is what was settled as published.
func (s *Store) Log() []Logged {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Abandoned are the rows that were given up, by seq.
func (s *Store) Abandoned() map[int64]relay.Abandonment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.abandoned)
}

// Queued is what the queue says of a row; ok is false if it isn't there.
func (s *Store) Queued(seq int64) (row relay.QueueRow, attempts int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue[seq]
	if q == nil {
		return row, 0, false
	}
	return q.QueueRow, q.attempts, true
}

// Owned is how many partitions of a target the members of each name have.
func (s *Store) Owned(target string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[string]int{}
	for _, m := range s.owners[s.lane(target)] {
		if of := s.members[m]; of != nil {
			by[of.name]++
		}
	}
	return by
}

// Members are the names of the members that there are, with their trouble.
func (s *Store) Members() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[string]string{}
	for _, m := range s.members {
		by[m.name] = m.trouble
	}
	return by
}

// Skip is an operator's skip of a row that nobody has in hand.
func (s *Store) Skip(seq int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue[seq]
	if q == nil {
		return errors.New("there is no such row")
	}
	if s.inHand(seq) {
		return errors.New("it is in hand")
	}
	delete(s.queue, seq)
	s.free(q.Key, seq)
	return nil
}

// free makes the row behind a seq of its key due [SKIPNODUE], and not the first [FIRSTDUE].
func (s *Store) free(key, behind int64) {
	if s.without["SKIPNODUE"] {
		return
	}
	var next *queued
	for _, q := range s.queue {
		if q.Key == key && (q.Seq > behind || s.without["FIRSTDUE"]) && (next == nil || q.Seq < next.Seq) {
			next = q
		}
	}
	if next != nil && !next.held {
		next.due = time.Now()
	}
}

// TakeTurn implements [relay.Housekeeping].
func (s *Store) TakeTurn(_ context.Context, name string, every time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.turns[name]; ok && time.Since(last) < every {
		return false, nil
	}
	s.turns[name] = time.Now()
	return true, nil
}

// GiveBackTurn implements [relay.Housekeeping].
func (s *Store) GiveBackTurn(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.turns, name)
	return nil
}

// WriteRetention implements [relay.Housekeeping].
func (s *Store) WriteRetention(context.Context, outbox.Config) error { return nil }

// Purge implements [relay.Housekeeping]: it removes all that was published.
func (s *Store) Purge(context.Context, outbox.Retention) (p outbox.Purged, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := range s.bodies {
		if _, abandoned := s.abandoned[seq]; s.queue[seq] == nil && !abandoned {
			delete(s.bodies, seq)
			p.Published++
		}
	}
	return p, nil
}

// Promises implements [relay.Housekeeping].
func (s *Store) Promises(target string, _ relay.LaneID) func(context.Context) (outbox.Promise, bool, error) {
	return func(context.Context) (outbox.Promise, bool, error) {
		now := time.Now()
		return outbox.Promise{Source: "test:" + target, Settled: now, AsOf: now}, true, nil
	}
}
