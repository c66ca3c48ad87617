package subscription

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/uow"
)

const (
	actionRetire = "retire"
	// countMost is how many inbox rows of a subscription are counted for a list.
	countMost = 10_000
	// goneFor is how long nothing may have been seen of a subscription that is retired.
	goneFor = time.Hour
	// runsIn is how long ago a run was seen that still runs.
	runsIn = 5 * beatEvery
	// retireRest is how many times as long as a batch the pause behind it is.
	retireRest = 1
)

// remains is a table in which a subscription leaves something.
type remains struct {
	table string
	key   string // columns that tell its rows apart
	walk  string // one that leads through many of them, by the index of key
}

// allRemains are in the order in which they are removed. Uptime and runs are the last:
// they say when the subscription was seen.
var allRemains = []remains{
	{"dead_letters", "seq", ""},
	{"inbox_attempts", "subscription, message_id", "message_id"},
	{"inbox_marks", "subscription, partition, source", ""},
	{"inbox", "subscription, message_id", "message_id"},
	{"subscription_evictions", "subscription", ""},
	{"subscription_uptime", "subscription, up_from", ""},
	{"subscription_runs", "subscription, run", ""},
}

// Listed is a subscription that a database knows of, of this program or another
// one, of today or of long ago.
type Listed struct {
	Name     string     `json:"name"`
	LastSeen *time.Time `json:"last_seen"` // when it last did anything
	Running  bool       `json:"running"`   // in some process
	// Joined says that one of these was in its group a moment ago, and got what came.
	Joined bool `json:"joined"`
	// Inbox is how many messages it is done with, as far as the inbox knows; at most
	// 10,000 are counted, and InboxMore says that there are more.
	Inbox     int64 `json:"inbox"`
	InboxMore bool  `json:"inbox_more"`
	// DeadLetters are all of it, and Open those of them that may still take effect. The
	// streams of a process have theirs under its name, where no inbox is.
	DeadLetters int64 `json:"dead_letters"`
	Open        int64 `json:"open"`
}

// List returns the subscriptions that a database knows of, by name. It takes its
// time where there are many dead letters.
func List(ctx context.Context, db bun.IDB) ([]Listed, error) {
	k := &known{all: map[string]*Listed{}}
	for _, step := range []func(context.Context, bun.IDB) error{k.inboxes, k.letters, k.signs} {
		if err := step(ctx, db); err != nil {
			return nil, fmt.Errorf("subscription: list subscriptions: %w", err)
		}
	}
	k.share()
	list := []Listed{}
	for _, name := range slices.Sorted(maps.Keys(k.all)) {
		list = append(list, *k.all[name])
	}
	return list, nil
}

// known are the subscriptions that a database knows of.
type known struct {
	all    map[string]*Listed
	shared [][2]string // names of dead letters, and of the streams that they may be of
}

func (k *known) seen(name string, at dbtime.Time) *Listed {
	l := k.all[name]
	if l == nil {
		l = &Listed{Name: name}
		k.all[name] = l
	}
	if at.Valid && (l.LastSeen == nil || l.LastSeen.Before(at.Time)) {
		l.LastSeen = &at.Time
	}
	return l
}

// inboxes steps from name to name through an index, however many rows are between.
func (k *known) inboxes(ctx context.Context, db bun.IDB) error {
	var names []string
	err := dbrows.Each(ctx, db, "WITH RECURSIVE n(name) AS (SELECT min(subscription) FROM inbox"+
		" UNION ALL SELECT (SELECT min(subscription) FROM inbox WHERE subscription > n.name) FROM n WHERE n.name IS NOT NULL) SELECT name FROM n WHERE name IS NOT NULL",
		func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		})
	if err != nil {
		return err
	}
	for _, name := range names {
		var at dbtime.Time
		var rows int64
		err := db.QueryRowContext(ctx, "SELECT (SELECT max(processed_at) FROM inbox WHERE subscription = ?0), (SELECT count(*) FROM (SELECT 1 FROM inbox WHERE subscription = ?0 LIMIT ?1) AS counted)", name, countMost+1).Scan(&at, &rows)
		if err != nil {
			return err
		}
		l := k.seen(name, at)
		l.Inbox, l.InboxMore = min(rows, countMost), rows > countMost
	}
	return nil
}

func (k *known) letters(ctx context.Context, db bun.IDB) error {
	return dbrows.Each(ctx, db, "SELECT subscription, topic, count(*), count(CASE WHEN "+open+" THEN 1 END), max(last_at) FROM dead_letters GROUP BY subscription, topic", func(scan func(...any) error) error {
		var name, topic string
		var n, open int64
		var at dbtime.Time
		err := scan(&name, &topic, &n, &open, &at)
		l := k.seen(name, at)
		l.DeadLetters, l.Open = l.DeadLetters+n, l.Open+open
		k.shared = append(k.shared, [2]string{name, name + "." + topic})
		return err
	})
}

// signs is what else its runs leave.
func (k *known) signs(ctx context.Context, db bun.IDB) error {
	d := db.Dialect()
	return dbrows.Each(ctx, db, "SELECT subscription, max(up_until), FALSE, max(CASE WHEN up_until > ?1 THEN 1 ELSE 0 END) = 1 FROM subscription_uptime WHERE up_from <= ?0 GROUP BY subscription"+
		" UNION ALL SELECT subscription, max(seen_at), max(CASE WHEN seen_at > ?1 THEN 1 ELSE 0 END) = 1, FALSE FROM subscription_runs GROUP BY subscription"+
		" UNION ALL SELECT subscription, NULL, FALSE, FALSE FROM inbox_attempts GROUP BY subscription"+
		" UNION ALL SELECT subscription, NULL, FALSE, FALSE FROM inbox_marks GROUP BY subscription"+
		" UNION ALL SELECT subscription, NULL, FALSE, FALSE FROM subscription_evictions", func(scan func(...any) error) error {
		var name string
		var at dbtime.Time
		var running, joined bool
		err := scan(&name, &at, &running, &joined)
		l := k.seen(name, at)
		l.Running, l.Joined = l.Running || running, l.Joined || joined
		return err
	}, bun.Safe(dbtime.Now(d)), bun.Safe(dbtime.In(d, -runsIn)))
}

// share gives what is known of a process's streams to the name that has their dead letters.
func (k *known) share() {
	for _, s := range k.shared {
		if of := k.all[s[1]]; of != nil {
			l := k.all[s[0]]
			l.Running, l.Joined = l.Running || of.Running, l.Joined || of.Joined
			if of.LastSeen != nil && (l.LastSeen == nil || l.LastSeen.Before(*of.LastSeen)) {
				l.LastSeen = of.LastSeen
			}
		}
	}
}

// runs says whether some process runs a subscription, or one of the streams that have
// their dead letters under its name.
func runs(ctx context.Context, db bun.IDB, name string) (running bool, err error) {
	stream := name + "."
	err = db.NewRaw("SELECT EXISTS (SELECT 1 FROM subscription_runs WHERE seen_at > ? AND (subscription = ? OR substr(subscription, 1, ?) = ?))",
		bun.Safe(dbtime.In(db.Dialect(), -runsIn)), name, utf8.RuneCountInString(stream), stream).Scan(ctx, &running)
	return running, err
}

// RetireOptions say how to retire a subscription.
type RetireOptions struct {
	// Actor is who asks, for the record. Required unless DryRun.
	Actor string
	// Discard gives up dead letters that are open. Without it they are in the way.
	Discard bool
	// DryRun counts, and removes nothing.
	DryRun bool
	// Progress is called after each transaction with how many rows were removed so far.
	// May be nil.
	Progress func(removed int64)
}

// Retired is what was removed of a subscription, or would be without a dry run.
type Retired struct {
	Rows   map[string]int64 `json:"rows"`   // by table
	Open   int64            `json:"open"`   // dead letters among them that were open
	Action int64            `json:"action"` // id of the record; 0: nothing was removed
}

// Total is how many rows were removed.
func (r Retired) Total() (n int64) {
	for _, of := range r.Rows {
		n += of
	}
	return n
}

// Retire removes all that a database keeps of a subscription that was removed:
// inbox, attempts, marks, uptime and dead letters. What operators did to these
// stays on record, and the consumer group stays at the broker.
//
// A process has a subscription for each stream that it hears, named after both: with
// one of these go the process's dead letters that came by it, and with the process's
// name all of them.
//
// It is refused while a run of it was seen within the hour, and while dead letters
// are open, unless these shall be discarded. It removes step by step, each a
// transaction of its own; where that ends early, running it again goes on. Of a
// subscription that the database doesn't know it removes nothing, which is no
// error.
func Retire(ctx context.Context, p uow.Provider, name string, o RetireOptions) (Retired, error) {
	r := Retired{Rows: map[string]int64{}}
	if name == "" {
		return r, errors.New("subscription: retire: the name of the subscription is missing")
	}
	run := &operate.Run{DB: p.DB(), What: fmt.Sprintf("subscription: retire %q", name), Done: "rows removed", DryRun: o.DryRun, Rest: retireRest, Record: actionRecord(o.Actor, actionRetire)}
	run.Record.Value, run.Record.Asked = name, struct {
		Subscription string `json:"subscription"`
		Discard      bool   `json:"discard,omitempty"`
	}{name, o.Discard}
	if o.Progress != nil {
		run.After = func() { o.Progress(run.Changed) }
	}
	if err := run.Record.Check(run.What, o.DryRun); err != nil {
		return r, err
	}
	if err := planRetire(ctx, p.Reader(), name, o, &r); err != nil || o.DryRun {
		return r, err
	}
	clear(r.Rows)
	for _, t := range allRemains {
		if err := t.retire(ctx, run, name, o, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// retire removes all that a subscription has in a table.
func (t remains) retire(ctx context.Context, run *operate.Run, name string, o RetireOptions, r *Retired) error {
	for after := ""; ; {
		var n int64
		var last string
		var left bool
		err := run.Step(ctx, func(tx bun.Tx) (_ int64, err error) {
			if err := inTheWay(ctx, tx, name, o); err != nil {
				return 0, err
			}
			if n, last, err = t.remove(ctx, tx, name, after); err != nil || n == operate.Batch {
				return n, err
			}
			// Somebody else may have removed some of these meanwhile, and have ended.
			return n, tx.NewRaw("SELECT EXISTS (SELECT 1 FROM "+t.table+" WHERE ?)", t.of(name)).Scan(ctx, &left)
		})
		if err != nil {
			return err
		}
		if n > 0 {
			r.Rows[t.table] += n
		}
		switch r.Action = run.Action; {
		case n == operate.Batch:
			after = last
		case left:
			after = ""
		default:
			return nil
		}
	}
}

// planRetire counts, and refuses what must stay.
func planRetire(ctx context.Context, db bun.IDB, name string, o RetireOptions, r *Retired) error {
	for _, t := range allRemains {
		var n int64
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+t.table+" WHERE ?", t.of(name)).Scan(&n); err != nil {
			return fmt.Errorf("subscription: retire %q: count %s: %w", name, t.table, err)
		}
		if n > 0 {
			r.Rows[t.table] = n
		}
	}
	err := db.QueryRowContext(ctx, "SELECT count(*) FROM dead_letters WHERE ? AND "+open, lettersOf(name)).Scan(&r.Open)
	if err == nil {
		err = inTheWay(ctx, db, name, o)
	}
	if err != nil {
		return fmt.Errorf("subscription: retire %q: %w", name, err)
	}
	return nil
}

// inTheWay is an error if the subscription may still run, or has open dead letters
// that nobody gave up.
func inTheWay(ctx context.Context, db bun.IDB, name string, o RetireOptions) error {
	now, d := bun.Safe(dbtime.Now(db.Dialect())), db.Dialect()
	var seen dbtime.Time
	names := "(SELECT ?0 UNION SELECT ?0 || '.' || topic FROM dead_letters WHERE subscription = ?0)" // A process's letters are its streams'.
	err := db.QueryRowContext(ctx, "SELECT max(at) FROM (SELECT up_until AS at FROM subscription_uptime WHERE subscription IN "+names+" AND up_from <= ?1"+
		" UNION ALL SELECT seen_at FROM subscription_runs WHERE subscription IN "+names+") AS signs WHERE at > ?2", name, now, bun.Safe(dbtime.In(d, -goneFor))).Scan(&seen)
	switch {
	case err != nil:
		return fmt.Errorf("find out when it was seen: %w", err)
	case seen.Valid:
		return fmt.Errorf("it was seen at %s, and must be gone for an hour: stop all processes that run it, under this name, and come back after %s",
			seen.Time.Format(time.RFC3339), seen.Time.Add(goneFor).Format(time.RFC3339))
	case o.Discard:
		return nil
	}
	var n int64
	var under *string
	if err := db.QueryRowContext(ctx, "SELECT count(*), min(subscription) FROM dead_letters WHERE ? AND "+open, lettersOf(name)).Scan(&n, &under); err != nil {
		return fmt.Errorf("count its open dead letters: %w", err)
	}
	if n > 0 {
		return fmt.Errorf("%d of its dead letters are open, and would never take effect: see them with waybill dead-letters list --subscription %s, and give them up with --discard", n, *under)
	}
	return nil
}

// of is the condition of a subscription's rows.
func (t remains) of(name string) schema.QueryWithArgs {
	if t.table == "dead_letters" {
		return lettersOf(name)
	}
	return bun.SafeQuery("subscription = ?", name)
}

// lettersOf is the condition of the dead letters under a name, and of those that came by
// the stream of a process that has this name: they are under the process's.
func lettersOf(name string) schema.QueryWithArgs {
	owners := []string{name}
	for i, c := range name {
		if c == '.' {
			owners = append(owners, name[:i])
		}
	}
	return bun.SafeQuery("(subscription = ? OR subscription IN (?) AND subscription || '.' || topic = ?)", name, bun.List(owners), name)
}

// remove removes some rows, those behind one where it walks, and returns the last
// one.
func (t remains) remove(ctx context.Context, tx bun.Tx, name, after string) (n int64, last string, err error) {
	these, returning, args := " FROM "+t.table+" WHERE ?", "''", []any{t.of(name)}
	if t.walk != "" {
		these, returning, args = these+" AND "+t.walk+" > ? ORDER BY "+t.walk, t.walk, append(args, after)
	}
	these += " LIMIT ?"
	args = append(args, operate.Batch)
	query := "DELETE FROM " + t.table + " WHERE (" + t.key + ") IN (SELECT " + t.key + these + ")"
	if tx.Dialect().Name() != dialect.SQLite {
		query = "DELETE FROM " + t.table + " WHERE ctid = ANY (ARRAY(SELECT ctid" + these + "))"
	}
	last = after
	err = dbrows.Each(ctx, tx, query+" RETURNING "+returning, func(scan func(...any) error) error {
		var at string
		err := scan(&at)
		last = max(last, at)
		n++
		return err
	}, args...)
	return n, last, err
}
