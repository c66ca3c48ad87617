package outbox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// candidate is an unfinished row, without its payload.
type candidate struct {
	seq       int64
	partition int
	key       string
	status    Status
	wait      float64 // seconds until it is due; 0 or less: due
	losses    int
	topic     string // only if the request has a May
}

// run collects the rows of a claim from candidates, which come in the order of
// seq, page by page.
type run struct {
	request     ClaimRequest
	memory      *Memory
	blocked     map[string]bool
	taken       map[string][]candidate // by key
	n           int
	next        float64 // smallest wait seen
	quarantined bool
	lasting     bool         // a key was met that can't go on
	unknown     bool         // and such a one that isn't remembered
	inHand      map[int]bool // partitions
}

func newRun(request ClaimRequest) *run {
	r := &run{request: request, memory: request.Memory, blocked: map[string]bool{}, taken: map[string][]candidate{}, inHand: map[int]bool{}}
	if r.memory == nil {
		r.memory = &Memory{}
	}
	return r
}

// part is how many rows a page has of each partition.
func (r *run) part(partitions int) int {
	return (max(r.request.Limit-r.n, minPage) + partitions - 1) / partitions
}

// topic is the column that says where a row goes, if that matters.
func (r *run) topic() string {
	if r.request.May == nil {
		return "''"
	}
	return "COALESCE(topic, replace(stream_category, '::', '.'))" // as DefaultTopic
}

func (r *run) add(c candidate) {
	waits := c.wait > 0 && c.status != Abandoned && c.status != Processing
	if waits && (r.next == 0 || c.wait < r.next) {
		r.next = c.wait
	}
	switch {
	case c.status == Processing:
		// Somebody has a row of this key: what was taken of it goes back.
		r.n -= len(r.taken[c.key])
		delete(r.taken, c.key)
		r.inHand[c.partition] = true
		r.block(c, false, time.Time{})
	case r.memory.blocked(c):
		r.memory.pass(c, true, time.Time{})
	case r.blocked[c.key]:
		r.memory.pass(c, false, time.Time{})
	case c.status == Abandoned: // held
		r.block(c, true, time.Time{})
	case waits:
		r.block(c, true, time.Now().Add(time.Duration(c.wait*float64(time.Second))))
	case c.losses >= quarantine && !r.request.Alone:
		r.quarantined = true
		r.block(c, false, time.Time{})
	case c.losses < quarantine && r.request.Alone, r.request.May != nil && !r.request.May(c.key, c.topic):
		r.block(c, false, time.Time{})
	default:
		r.memory.stop(c)
		r.taken[c.key] = append(r.taken[c.key], c)
		r.n++
	}
}

func (r *run) block(c candidate, lasting bool, until time.Time) {
	r.blocked[c.key] = true
	r.lasting = r.lasting || lasting
	known := r.memory.pass(c, lasting, until)
	r.unknown = r.unknown || lasting && !known
}

type choice struct {
	rows        []candidate // in the order of seq
	next        time.Duration
	quarantined bool
	crowded     bool
	inHand      []int
}

// seqs are those of the rows that a condition holds for; nil: of all.
func (c choice) seqs(of func(candidate) bool) (seqs []int64) {
	for _, row := range c.rows {
		if of == nil || of(row) {
			seqs = append(seqs, row.seq)
		}
	}
	return seqs
}

func (r *run) choice(own map[int]partitionState) choice {
	all := make([]candidate, 0, r.n)
	for _, taken := range r.taken {
		all = append(all, taken...)
	}
	slices.SortFunc(all, bySeq)
	c := choice{next: time.Duration(r.next * float64(time.Second)), quarantined: r.quarantined}
	for p := range r.inHand {
		c.inHand = append(c.inHand, p)
	}
	if wait := r.memory.wait(maps.Keys(own)); wait > 0 && (c.next == 0 || wait < c.next) {
		c.next = wait
	}
	// Cut at the limit: what goes is the end of the order, so that each key keeps
	// a leading run.
	c.rows = all[:min(len(all), r.request.Limit)]
	return c
}

// leaveLocked takes the keys out of a choice of which others have locked a row,
// and locks the rest. To leave out only the row itself would publish its
// followers before it.
func (s *Store) leaveLocked(ctx context.Context, tx bun.Tx, c *choice) error {
	if len(c.rows) == 0 {
		return nil
	}
	var free []int64
	if err := scanAll(ctx, tx, &free, "SELECT seq FROM outbox WHERE seq IN ("+list(c.seqs(nil))+") ORDER BY seq FOR NO KEY UPDATE SKIP LOCKED"); err != nil {
		return err
	}
	locked := map[string]bool{}
	for _, row := range c.rows {
		if _, ok := slices.BinarySearch(free, row.seq); !ok {
			locked[row.key] = true
		}
	}
	c.rows = slices.DeleteFunc(c.rows, func(row candidate) bool { return locked[row.key] })
	return nil
}

// exclude are blocked keys for the next page to leave out, as far as they fit
// in a query; further ones are passed over here.
func (r *run) exclude(partitions map[int]int64) []string {
	n := len(r.blocked)
	for p := range partitions {
		n += len(r.memory.partitions[p].walls)
	}
	if n == 0 || n > maxExcluded {
		return nil
	}
	keys := make([]string, 0, n)
	for key := range r.blocked {
		keys = append(keys, key)
	}
	for p := range partitions {
		for key := range r.memory.partitions[p].walls {
			keys = append(keys, key)
		}
	}
	return keys
}

// maxExcluded bounds how many keys a page leaves out.
const maxExcluded = 1000

// choose pages through the unfinished rows of each partition until the limit is
// reached, so that any number of rows behind blocked heads hides nothing. A page
// has an equal part of each partition: what is oldest of all comes first, and
// what comes after it needn't be in the order of seq between partitions.
//
// It does so while no row of the target has a priority; a page that meets one
// leaves the choice to rank. Each page looks for itself, in its own snapshot: a
// row with a priority may have come since the page before, and another of its key
// after it.
func (s *Store) choose(ctx context.Context, db bun.IDB, request ClaimRequest, own map[int]partitionState) (choice, error) {
	r := newRun(request)
	if r.memory.ranked { // most likely still
		return s.rank(ctx, db, request, own)
	}
	if r.memory.far {
		if err := r.memory.look(ctx, db, s.sqlite()); err != nil {
			return choice{}, err
		}
	} else if err := r.memory.lookSometimes(ctx, db, s.sqlite()); err != nil {
		return choice{}, err
	}
	r.memory.begin(own)
	after := make(map[int]int64, len(own)) // of those that may have more
	for p := range own {
		after[p] = r.memory.partitions[p].after
	}
	pages := 0
	bounds := map[int]int64{}
	for ; len(after) > 0 && r.n < request.Limit; pages++ {
		w := walk{after: after, bounds: bounds, part: r.part(len(after)), unless: true}
		r.memory.far = r.memory.far || pages > 0 && r.lasting
		page, err := s.page(ctx, db, r, w)
		if err != nil {
			return choice{}, err
		}
		if page.priorities {
			return s.rank(ctx, db, request, own)
		}
		for _, c := range page.rows {
			r.add(c)
		}
		first := page.advance(w, func(p int) { r.memory.end(p, bounds[p]) })
		if request.Near && pages == 0 {
			for p, last := range after {
				bounds[p] = last + near*(last-first[p]+1)
			}
		}
	}
	r.memory.busy = r.unknown
	r.memory.intricate = r.unknown || r.quarantined || r.memory.walls() > maxExcluded || pages > 4 && r.n < request.Limit/4
	c := r.choice(own)
	c.crowded = request.Near && pages > 1 && len(r.inHand) > 0 && r.n < request.Limit/4
	return c, nil
}

// near is how far a search goes that is to be near.
const near = 128

// minPage is how many rows a page has at least, if there are as many.
const minPage = 100

// walk says which page to read: of some partitions, after and up to some seq, the
// rows of one priority.
type walk struct {
	after  map[int]int64
	bounds map[int]int64 // nil, or missing: none
	part   int           // of each partition, at most
	// priority is that of the rows; unless says to read none if any row of the target
	// has another priority than 0.
	priority int
	unless   bool
}

// page is what was read.
type page struct {
	rows       []candidate // in the order of seq
	priorities bool        // there are rows with priorities, and nothing was read
}

// advance moves a walk behind a page, and leaves out partitions that were read to
// their end. It returns the first row of each partition.
func (p page) advance(w walk, end func(partition int)) (first map[int]int64) {
	of := map[int]int{}
	first = map[int]int64{}
	for _, c := range p.rows {
		if of[c.partition]++; of[c.partition] == 1 {
			first[c.partition] = c.seq
		}
		w.after[c.partition] = c.seq
	}
	for partition := range w.after {
		if of[partition] < w.part {
			if end != nil {
				end(partition)
			}
			delete(w.after, partition)
		}
	}
	return first
}

// page reads the next unfinished rows of each partition, in the order of seq.
//
// PostgreSQL plans one walk of the index and repeats it for each partition. A
// branch for each, merged, would say the same, but to plan it takes ten times as
// long as to run it.
func (s *Store) page(ctx context.Context, db bun.IDB, r *run, w walk) (p page, err error) {
	exclude, args := "", []any{r.request.Target}
	if keys := r.exclude(w.after); len(keys) > 0 {
		exclude, args = " AND partition_key NOT IN (?1)", append(args, bun.List(keys))
	}
	part := strconv.Itoa(w.part)
	one := func(partition, seq, bound string) string {
		return "(SELECT seq, partition, partition_key, status, available_at, losses, " + r.topic() + " AS topic FROM outbox WHERE target_broker = ?0 AND partition = " + partition +
			" AND priority = " + strconv.Itoa(w.priority) + " AND finished_at IS NULL AND seq > " + seq + " AND seq <= " + bound + exclude + " ORDER BY seq LIMIT " + part + ")"
	}
	var from []string
	for p, seq := range w.after {
		bound := cmp.Or(w.bounds[p], math.MaxInt64)
		if s.sqlite() {
			from = append(from, "SELECT * FROM "+one(strconv.Itoa(p), strconv.FormatInt(seq, 10), strconv.FormatInt(bound, 10)))
		} else {
			from = append(from, fmt.Sprintf("(%d, %d, %d)", p, seq, bound))
		}
	}
	query := "SELECT seq, partition, partition_key, status, " + dbtime.Seconds(s.db.Dialect(), s.now(), "available_at") + ", losses, topic FROM "
	if s.sqlite() {
		query += "(" + strings.Join(from, " UNION ALL ") + ") AS unfinished"
	} else {
		query += "(VALUES " + strings.Join(from, ", ") + ") AS v(p, after, bound) CROSS JOIN LATERAL " + one("v.p", "v.after", "v.bound") + " AS unfinished"
	}
	if w.unless {
		// As an aggregate, which PostgreSQL takes from the index even where its
		// statistics say that most rows have a priority, and none has.
		const some = "(SELECT max(priority) FROM outbox WHERE target_broker = ?0 AND finished_at IS NULL AND priority <> 0) IS NOT NULL"
		query = "SELECT 0 AS seq, 0 AS partition, '' AS partition_key, '' AS status, 0 AS wait, 0 AS losses, '' AS topic WHERE " + some +
			" UNION ALL SELECT * FROM (" + query + " WHERE NOT (" + some + ")) AS walked"
	}
	p.rows = make([]candidate, 0, w.part*len(w.after))
	err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var c candidate
		err := scan(&c.seq, &c.partition, &c.key, &c.status, &c.wait, &c.losses, &c.topic)
		if c.seq == 0 {
			p.priorities = true
			return err
		}
		p.rows = append(p.rows, c)
		return err
	}, args...)
	slices.SortFunc(p.rows, bySeq)
	return p, err
}
