package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// byAge is which claims go by age and not by priority while rows with priorities
// wait: every fourth. Each row is among the oldest one day, so none waits for
// ever.
const byAge = 4

// rank chooses while rows with priorities wait. Priorities nominate keys; what is
// taken of a key is its longest run of due rows from its first unfinished row on,
// as always. So a row never overtakes another of its key, and an urgent one takes
// those before it along.
func (s *Store) rank(ctx context.Context, db bun.IDB, request ClaimRequest, own map[int]partitionState) (choice, error) {
	r := newRun(request)
	classes, err := s.priorities(ctx, db, request.Target)
	if err != nil {
		return choice{}, err
	}
	r.memory.ranked = len(classes) > 1
	turn := r.memory.turn
	r.memory = &Memory{}
	r.memory.begin(own)
	read := map[string]int64{} // up to where a key was read
	if turn%byAge == byAge-1 {
		var oldest []candidate
		for _, class := range classes {
			page, err := s.page(ctx, db, r, walk{after: beginning(own), part: r.part(len(own)), priority: class})
			if err != nil {
				return choice{}, err
			}
			oldest = append(oldest, page.rows...)
		}
		slices.SortFunc(oldest, bySeq)
		if err := s.nominate(ctx, db, r, read, oldest[:min(len(oldest), request.Limit)]); err != nil {
			return choice{}, err
		}
	}
	for _, class := range classes {
		for after := beginning(own); len(after) > 0 && r.n < request.Limit; {
			w := walk{after: after, part: r.part(len(after)), priority: class}
			page, err := s.page(ctx, db, r, w)
			if err != nil {
				return choice{}, err
			}
			if err := s.nominate(ctx, db, r, read, page.rows); err != nil {
				return choice{}, err
			}
			page.advance(w, nil)
		}
	}
	return r.choice(own), nil
}

func beginning(own map[int]partitionState) map[int]int64 {
	after := make(map[int]int64, len(own))
	for p := range own {
		after[p] = 0
	}
	return after
}

// priorities are those of the unfinished rows of a target, with 0, the largest
// first. It looks each up in the index, however many rows have it.
func (s *Store) priorities(ctx context.Context, db bun.IDB, target string) ([]int, error) {
	const largest = "(SELECT max(priority) FROM outbox WHERE target_broker = ?0 AND finished_at IS NULL AND priority <> 0%s)"
	all := []int{0}
	err := scanAll(ctx, db, &all, "WITH RECURSIVE p(n) AS (SELECT "+fmt.Sprintf(largest, "")+" UNION ALL"+
		" SELECT "+fmt.Sprintf(largest, " AND priority < p.n")+" FROM p WHERE p.n IS NOT NULL) SELECT n FROM p WHERE n IS NOT NULL", target)
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(b, a) })
	return all, err
}

// nominate takes what can be taken of the keys of some rows up to these, in the
// order in which they come.
func (s *Store) nominate(ctx context.Context, db bun.IDB, r *run, read map[string]int64, rows []candidate) error {
	var keys []string
	upTo := map[string]int64{}
	for _, c := range rows {
		if r.blocked[c.key] || c.seq <= read[c.key] {
			continue
		}
		if upTo[c.key] == 0 {
			keys = append(keys, c.key)
		}
		upTo[c.key] = max(upTo[c.key], c.seq)
	}
	if len(keys) == 0 {
		return nil
	}
	part := r.request.Limit/len(keys) + minRun
	all, err := s.runs(ctx, db, r, keys, read, upTo, part)
	if err != nil {
		return err
	}
	for _, key := range keys {
		read[key] = upTo[key]
		if run := all[key]; len(run) >= part {
			read[key] = run[len(run)-1].seq
		}
		for _, c := range all[key] {
			if r.n >= r.request.Limit {
				return nil
			}
			r.add(c)
		}
	}
	return nil
}

// minRun is how many rows of a key are read at least, if there are as many.
const minRun = 8

// runs reads the unfinished rows of keys after and up to some, the first of each
// key, in the order of seq.
func (s *Store) runs(ctx context.Context, db bun.IDB, r *run, keys []string, after, upTo map[string]int64, part int) (map[string][]candidate, error) {
	values := make([]string, len(keys))
	args := []any{r.request.Target}
	for i, key := range keys {
		values[i] = fmt.Sprintf("(?%d, %d, %d)", i+1, after[key], upTo[key])
		args = append(args, key)
	}
	columns := "o.seq, o.partition, o.partition_key, o.status, " + dbtime.Seconds(s.db.Dialect(), s.now(), "o.available_at") + ", o.losses, " + r.topic()
	where := " FROM outbox AS o WHERE o.partition_key = v.key AND o.target_broker = ?0 AND o.finished_at IS NULL AND o.seq > v.after AND o.seq <= v.up_to"
	query := "WITH v(key, after, up_to) AS (VALUES " + strings.Join(values, ", ") + ") "
	if s.sqlite() {
		query += "SELECT " + columns + " FROM v CROSS JOIN outbox AS o" + strings.TrimPrefix(where, " FROM outbox AS o")
	} else {
		query += "SELECT first.* FROM v CROSS JOIN LATERAL (SELECT " + columns + where + " ORDER BY o.seq LIMIT " + strconv.Itoa(part) + ") AS first"
	}
	all := map[string][]candidate{}
	err := dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var c candidate
		err := scan(&c.seq, &c.partition, &c.key, &c.status, &c.wait, &c.losses, &c.topic)
		all[c.key] = append(all[c.key], c)
		return err
	}, args...)
	for _, run := range all {
		slices.SortFunc(run, bySeq)
	}
	return all, err
}

func bySeq(a, b candidate) int { return cmp.Compare(a.seq, b.seq) }
