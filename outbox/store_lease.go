package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Lease is a worker's right to publish one partition of one target. Its fence
// is a number that no other lease ever has.
type Lease struct {
	Worker    string
	Partition int
	Fence     int64
}

// announcing is how long PostgreSQL waits for a process in the middle of its renewal.
const announcing = "15s"

// EnsurePartitions creates the partitions of a target that has none yet.
func (s *Store) EnsurePartitions(ctx context.Context, target string) (partitions int, err error) {
	partitions, err = Partitions(ctx, s.reader)
	if err != nil {
		return 0, err
	}
	// To insert what is there would wait for whoever is writing it, and a process that
	// has been stopped may do so for long.
	var there int
	err = s.reader.QueryRowContext(ctx, "SELECT count(*) FROM outbox_partitions WHERE target_broker = ?", target).Scan(&there)
	if err != nil || there == partitions {
		return partitions, err
	}
	values := make([]string, partitions)
	for p := range values {
		values[p] = fmt.Sprintf("(?0, %d)", p)
	}
	_, err = s.db.ExecContext(ctx, "INSERT INTO outbox_partitions (target_broker, partition) VALUES "+strings.Join(values, ", ")+
		" ON CONFLICT (target_broker, partition) DO NOTHING", target)
	return partitions, err
}

// Announce says for one more ttl that workers are alive, and forgets those that
// have been dead for a whole ttl. It extends those of their leases that owner
// and fence prove to be theirs, and returns them. A lease that ran out and that
// nobody took counts as theirs.
func (s *Store) Announce(ctx context.Context, db bun.IDB, target string, workers []string, leases []Lease, ttl time.Duration) (kept []Lease, err error) {
	until := dbtime.In(s.db.Dialect(), ttl)
	err = s.inTx(ctx, db, func(tx bun.Tx) error {
		values := make([]string, len(workers))
		args := []any{target}
		for i, w := range workers {
			values[i] = fmt.Sprintf("(?%d, ?0, %s)", i+1, until)
			args = append(args, w)
		}
		// A process that is stopped in here must not lock its partitions for ever.
		if !s.sqlite() {
			if _, err := tx.ExecContext(ctx, "SELECT set_config('idle_in_transaction_session_timeout', '"+announcing+"', true)"); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO outbox_workers (worker, target_broker, seen_until) VALUES "+strings.Join(values, ", ")+
			" ON CONFLICT (worker, target_broker) DO UPDATE SET seen_until = excluded.seen_until", args...)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM outbox_workers WHERE seen_until < "+dbtime.In(s.db.Dialect(), -ttl)); err != nil {
			return err
		}
		if len(leases) == 0 {
			return nil
		}
		return dbrows.Each(ctx, tx, leaseValues(leases)+
			" UPDATE outbox_partitions SET locked_until = "+until+
			" FROM v WHERE target_broker = ? AND outbox_partitions.partition = v.partition AND outbox_partitions.fence = v.fence"+
			" AND locked_by = v.worker RETURNING locked_by, outbox_partitions.partition, outbox_partitions.fence",
			func(scan func(...any) error) error {
				var l Lease
				err := scan(&l.Worker, &l.Partition, &l.Fence)
				kept = append(kept, l)
				return err
			}, target)
	})
	return kept, err
}

// leaseValues is leases as a table v(worker, partition, fence). Names of workers
// need no quoting: see liveness.Host.Name.
func leaseValues(leases []Lease) string {
	var b strings.Builder
	b.WriteString("WITH v(worker, partition, fence) AS (VALUES ")
	for i, l := range leases {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "('%s', %d, %d)", l.Worker, l.Partition, l.Fence)
	}
	b.WriteByte(')')
	return b.String()
}

// Membership is what a lane looks at to know whether its shares are right.
type Membership struct {
	Workers int      // alive
	Free    int      // partitions that nobody holds
	Members []Member // by name
	Now     time.Time
}

// Member is a worker that is alive by its announcement, or holds partitions.
type Member struct {
	Worker     string
	Partitions int        // that it holds
	Until      *time.Time // end of the last of these leases; nil: there is none
}

// Membership looks at a target's live workers and its partitions.
func (s *Store) Membership(ctx context.Context, target string) (m Membership, err error) {
	running := func(column string) string { return "CASE WHEN locked_until > " + s.now() + " THEN " + column + " END" }
	err = dbrows.Each(ctx, s.reader, "SELECT worker, sum(alive), sum(partitions), max(until), "+s.now()+" FROM"+
		" (SELECT worker, 1 AS alive, 0 AS partitions, NULL AS until FROM outbox_workers WHERE target_broker = ?0 AND seen_until > "+s.now()+
		" UNION ALL SELECT "+running("locked_by")+", 0, 1, "+running("locked_until")+" FROM outbox_partitions WHERE target_broker = ?0) AS members"+
		" GROUP BY worker ORDER BY worker",
		func(scan func(...any) error) error {
			var worker *string
			var alive, partitions int
			var until, now dbtime.Time
			if err := scan(&worker, &alive, &partitions, &until, &now); err != nil {
				return err
			}
			m.Now = now.Time
			if worker == nil {
				m.Free = partitions
				return nil
			}
			m.Workers += alive
			m.Members = append(m.Members, Member{Worker: *worker, Partitions: partitions, Until: pointer(until)})
			return nil
		}, target)
	return m, err
}

// Forget ends the leases of workers at once, and their membership, and returns how
// many leases there were. It is for workers whose processes have ended, and does
// what time would: their partitions are free from now on, and whoever takes one
// goes through [Store.Acquire], with its new fence and the end of all older claims.
// Thus nothing is less safe than when leases run out, not even if the proof of
// their death was wrong: they would find themselves robbed, as after a long pause.
func (s *Store) Forget(ctx context.Context, db bun.IDB, target string, workers []string) (leases int, err error) {
	err = s.inTx(ctx, db, func(tx bun.Tx) error {
		held := "SELECT partition FROM outbox_partitions WHERE target_broker = ?0 AND locked_by IN (?1) AND locked_until > " + s.now()
		if !s.sqlite() {
			// What a dead process's last transaction still has is free when the server has
			// ended that: the next look finds it.
			held += " FOR UPDATE SKIP LOCKED"
		}
		result, err := tx.ExecContext(ctx, "UPDATE outbox_partitions SET locked_until = "+s.now()+" WHERE target_broker = ?0 AND partition IN ("+held+")", target, bun.List(workers))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		leases = int(n)
		_, err = tx.ExecContext(ctx, "DELETE FROM outbox_workers WHERE target_broker = ?0 AND worker IN (?1)", target, bun.List(workers))
		return err
	})
	return leases, err
}

// Owner is a worker that takes partitions, and what it does with a row that a
// crash ends.
type Owner struct {
	Target      string
	Worker      string
	Lease       time.Duration
	OnAbandoned OnAbandoned   // "" is Skip.
	Abandoned   time.Duration // as Retention.Abandoned
}

// Takeover is what became of rows that earlier owners had claimed and not
// settled.
type Takeover struct {
	Pending   int     // are pending again
	Abandoned []int64 // the crashes were too many
}

// Acquire takes up to n free partitions for a worker, each under a new fence,
// and ends in the same transaction the claims of their older fences: their rows
// are pending again, and what an earlier owner still writes back matches nothing.
func (s *Store) Acquire(ctx context.Context, o Owner, n int) (leases []Lease, t Takeover, err error) {
	if n <= 0 {
		return nil, t, nil
	}
	err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
		free := "SELECT partition FROM outbox_partitions WHERE target_broker = ? AND (locked_by IS NULL OR locked_until <= " + s.now() + ")" +
			s.patience(patience(o.Lease), silence(o.Lease)) + " ORDER BY random() LIMIT " + fmt.Sprint(n)
		if !s.sqlite() {
			// Two workers that look at once take different ones, and neither waits.
			free += " FOR UPDATE SKIP LOCKED"
		}
		var partitions []int
		if err := scanAll(ctx, tx, &partitions, free, o.Target); err != nil || len(partitions) == 0 {
			return err
		}
		if leases, err = s.fence(ctx, tx, o, partitions); err != nil {
			return err
		}
		t, err = s.sweep(ctx, tx, o, partitions)
		return err
	})
	if err != nil {
		return nil, Takeover{}, err
	}
	return leases, t, nil
}

// Refence gives everything that a worker holds new fences, and ends the claims
// of the old ones. A worker does so when it has no call out and rows may be in
// its hand all the same: after a claim that was not answered, whose rows were
// never sent and are handed back unspent; or, with lost, after a call that
// panicked, which counts as a crash. It waits for that claim's transaction, which
// holds the partitions.
func (s *Store) Refence(ctx context.Context, o Owner, lost bool) (leases []Lease, t Takeover, err error) {
	err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
		mine := "SELECT partition FROM outbox_partitions WHERE target_broker = ? AND locked_by = ? ORDER BY partition"
		if !s.sqlite() {
			mine += " FOR UPDATE"
		}
		var partitions []int
		if err := scanAll(ctx, tx, &partitions, mine, o.Target, o.Worker); err != nil || len(partitions) == 0 {
			return err
		}
		if leases, err = s.fence(ctx, tx, o, partitions); err != nil {
			return err
		}
		if lost {
			t, err = s.sweep(ctx, tx, o, partitions)
			return err
		}
		_, err = tx.ExecContext(ctx, s.claimed(partitions)+
			" UPDATE outbox SET status = 'pending', attempts = attempts - 1, locked_by = NULL, locked_until = NULL, fence = NULL, claim_id = NULL"+
			" WHERE seq IN (SELECT seq FROM locked)", o.Target)
		return err
	})
	if err != nil {
		return nil, Takeover{}, err
	}
	return leases, t, nil
}

// fence makes a worker the owner of partitions, which tx has locked.
func (s *Store) fence(ctx context.Context, tx bun.Tx, o Owner, partitions []int) (leases []Lease, err error) {
	slices.Sort(partitions)
	for _, p := range partitions {
		l := Lease{Worker: o.Worker, Partition: p}
		if l.Fence, err = s.sequence(ctx, tx, "fence"); err != nil {
			return nil, err
		}
		leases = append(leases, l)
	}
	_, err = tx.ExecContext(ctx, leaseValues(leases)+" UPDATE outbox_partitions SET locked_by = v.worker, fence = v.fence,"+
		" locked_until = "+dbtime.In(s.db.Dialect(), o.Lease)+" FROM v WHERE target_broker = ? AND outbox_partitions.partition = v.partition", o.Target)
	return leases, err
}

// sweep ends the claims of older fences: the one place where a claim ends that
// nobody settled. Each costs its rows a loss. From the loss on that makes them
// both as many as the row's attempts and three more than what put it into
// quarantine, where every claim is of one row alone, the row is abandoned: it
// must be what kills.
func (s *Store) sweep(ctx context.Context, tx bun.Tx, o Owner, partitions []int) (t Takeover, err error) {
	null := "NULL"
	if !s.sqlite() {
		null = "CAST(NULL AS timestamptz)"
	}
	finished, expires := s.now(), null
	if o.OnAbandoned == Hold {
		finished = null
	} else if o.Abandoned >= 0 {
		expires = dbtime.In(s.db.Dialect(), o.Abandoned)
	}
	dead := fmt.Sprintf("(losses + 1 >= max_attempts AND losses + 1 >= %d)", buried)
	err = dbrows.Each(ctx, tx, s.claimed(partitions)+
		" UPDATE outbox SET losses = losses + 1, locked_by = NULL, locked_until = NULL, fence = NULL, claim_id = NULL,"+
		" status = CASE WHEN "+dead+" THEN 'abandoned' ELSE 'pending' END,"+
		" held = CASE WHEN "+dead+" THEN ?1 ELSE held END,"+
		" failure_class = CASE WHEN "+dead+" THEN 'crash' ELSE failure_class END,"+
		" last_error = CASE WHEN "+dead+" THEN 'each of the last ' || (losses + 1) || ' processes that published this row ended before it knew the outcome, the last ones with no other row in hand' ELSE last_error END,"+
		" finished_at = CASE WHEN "+dead+" THEN "+finished+" END, expires_at = CASE WHEN "+dead+" THEN "+expires+" END"+
		" WHERE seq IN (SELECT seq FROM locked) RETURNING seq, status",
		func(scan func(...any) error) error {
			var seq int64
			var status Status
			if err := scan(&seq, &status); err != nil {
				return err
			}
			if status == Abandoned {
				t.Abandoned = append(t.Abandoned, seq)
			} else {
				t.Pending++
			}
			return nil
		}, o.Target, o.OnAbandoned == Hold)
	return t, err
}

// claimed is a table of the rows of partitions that are in somebody's hand, see
// locked. claimed_below keeps it from walking a backlog that nobody has touched.
func (s *Store) claimed(partitions []int) string {
	return s.locked("target_broker = ?0 AND partition IN (" + list(partitions) + ") AND finished_at IS NULL AND status = 'processing'" +
		" AND seq < (SELECT max(claimed_below) FROM outbox_partitions WHERE target_broker = ?0 AND partition IN (" + list(partitions) + "))")
}

// locked is a table of the rows of outbox that meet a condition, locked in the
// order of seq: two transactions that want the same rows wait for each other,
// but never in a circle.
func (s *Store) locked(where string) string {
	query := "SELECT seq FROM outbox WHERE " + where + " ORDER BY seq"
	if s.sqlite() {
		return "WITH locked AS (" + query + ")"
	}
	return "WITH locked AS MATERIALIZED (" + query + " FOR NO KEY UPDATE)"
}

// Release gives partitions back, where owner and fence prove that they are the
// worker's own. The worker has settled all their calls before.
func (s *Store) Release(ctx context.Context, target string, leases []Lease) error {
	if len(leases) == 0 {
		return nil
	}
	_, err := s.db.ExecContext(ctx, leaseValues(leases)+
		" UPDATE outbox_partitions SET locked_by = NULL, locked_until = NULL FROM v"+
		" WHERE target_broker = ? AND outbox_partitions.partition = v.partition AND outbox_partitions.fence = v.fence AND locked_by = v.worker", target)
	return err
}

// Leave takes workers off the list of the living.
func (s *Store) Leave(ctx context.Context, target string, workers []string) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM outbox_workers WHERE target_broker = ? AND worker IN (?)", target, bun.List(workers))
	return err
}
