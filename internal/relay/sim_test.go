package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// simRow is a row of the simulation's database.
type simRow struct {
	QueueRow

	due       time.Time // due_at
	held      bool
	attempts  int
	abandoned bool // in outbox_abandoned
	back      bool // an operator took it back from there
}

// simTx locks the table when it begins, and a key with each row that it writes:
// so a key's rows become visible in the order of seq, and others don't.
type simTx struct {
	name string
	rows []*simRow
}

// simCall is a claim that was answered, on its way to be settled.
type simCall struct {
	n       int64
	c       *choice
	rows    []Claimed
	o       outcome
	judged  bool
	decided bool // the settle has committed; its answer is on its way
}

const simKeys, simParts, simTopics = 9, 3, 3

// sim is a lane's one reader and its calls on a fake database, beside units that
// commit, operators and time. Each read and what is made of it are two steps,
// others come between. off names a rule that is left out; see model/track.pml.
type sim struct {
	off    string
	only   string // the property that is asserted; "": all
	random *rand.Rand
	now    time.Time
	t      *track
	b      *breakers
	h      *horizon

	rows   map[int64]*simRow // visible, not published
	seq    int64
	xid    int
	txs    []*simTx
	locks  map[int64]*simTx
	tokens map[int64][]int64
	n      int64
	forget []int64

	away    [simTopics + 1]bool // 0: the broker
	calls   []*simCall
	looking func() // what is out: it takes the answer in
	fetched func()
	claimed func()
	sample  *HorizonSample
	asked   []int64 // keys of fetches that are out
	hold    bool
	fine    bool // all is answered from now on
	sent    int
}

func newSim(seed uint64, off string) *sim {
	s := &sim{
		off: off, random: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1000000, 0), h: &horizon{},
		rows: map[int64]*simRow{}, locks: map[int64]*simTx{}, tokens: map[int64][]int64{}, hold: seed%2 == 0,
	}
	s.b = newBreakers(s.random.Float64)
	s.join()
	return s
}

// join is a new member: it remembers nothing, and what was in hand has a loss.
func (s *sim) join() {
	for _, seqs := range s.tokens {
		for _, seq := range seqs {
			if r := s.rows[seq]; r != nil {
				r.Losses++
			}
		}
	}
	s.tokens, s.calls, s.forget, s.looking, s.fetched, s.claimed, s.asked = map[int64][]int64{}, nil, nil, nil, nil, nil, nil
	s.b = newBreakers(s.random.Float64)
	s.t = newTrack(s.b)
	s.t.bounds = bounds{key: 4, lane: 24, low: 6, look: 16, want: 6, page: 6, pageLeast: 2, pageMax: 64, fetch: 3, sample: 2}
	for part := range simParts {
		s.t.take(part)
	}
}

func (s *sim) chance(percent int) bool { return s.random.IntN(100) < percent }

// row is any visible one.
func (s *sim) row() *simRow {
	if len(s.rows) == 0 {
		return nil
	}
	return s.rows[s.seqs()[s.random.IntN(len(s.rows))]]
}

func (s *sim) seqs() []int64 {
	seqs := make([]int64, 0, len(s.rows))
	for seq := range s.rows {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

func (s *sim) waits(r *simRow) bool { return r.held || r.due.After(s.now) }

func (s *sim) inToken(seq int64) bool {
	for _, seqs := range s.tokens {
		if slices.Contains(seqs, seq) {
			return true
		}
	}
	return false
}

// read is what the database answers of rows that are to be delivered.
func (s *sim) read(which func(*simRow) bool, limit int) (rows []QueueRow) {
	for _, seq := range s.seqs() {
		r := s.rows[seq]
		if r.abandoned || !which(r) {
			continue
		}
		if len(rows) == limit {
			break
		}
		row := r.QueueRow
		row.Waits = s.waits(r)
		rows = append(rows, row)
	}
	return rows
}

// --- units -------------------------------------------------------------------

func (s *sim) unit() {
	if len(s.txs) < 4 && s.chance(40) {
		s.xid++
		s.txs = append(s.txs, &simTx{name: fmt.Sprint("tx", s.xid)})
		return
	}
	if len(s.txs) == 0 {
		return
	}
	i := s.random.IntN(len(s.txs))
	if tx := s.txs[i]; len(tx.rows) < 3 && s.chance(60) {
		s.insert(tx)
	} else if s.chance(90) || len(tx.rows) > 0 {
		s.end(i, s.chance(95))
	}
}

func (s *sim) insert(tx *simTx) {
	key := int64(1 + s.random.IntN(simKeys))
	if by := s.locks[key]; by != nil && by != tx {
		return
	}
	s.locks[key] = tx
	s.seq++
	class := int8(max(s.random.IntN(9)-7, s.random.IntN(3)/2*-1))
	tx.rows = append(tx.rows, &simRow{QueueRow: QueueRow{
		Part: int(key) % simParts, Seq: s.seq, Key: key, Topic: 1 + key/simParts%simTopics, Class: class, Bytes: 1 + s.random.IntN(5),
	}})
}

func (s *sim) end(i int, commits bool) {
	tx := s.txs[i]
	s.txs = slices.Delete(s.txs, i, i+1)
	for key, by := range s.locks {
		if by == tx {
			delete(s.locks, key)
		}
	}
	for _, r := range tx.rows {
		if commits {
			s.rows[r.Seq] = r
			s.t.poke(r.Part)
		}
	}
}

// --- operators ---------------------------------------------------------------

// verb acts on a row that no token has.
func (s *sim) verb() {
	r := s.row()
	if r == nil || s.inToken(r.Seq) {
		return
	}
	switch what := s.random.IntN(4); {
	case r.abandoned: // taken back, with followers gone
		r.abandoned, r.back, r.due = false, true, s.now
	case what == 0 && s.waits(r): // retry
		r.held, r.due = false, s.now
	case what == 1: // skip, abandon
		s.takeAway(r)
	case what == 2 && !s.keyInToken(r.Key): // abandon, which holds
		r.held, r.due = true, time.Time{}
	}
}

func (s *sim) keyInToken(key int64) bool {
	for seq, r := range s.rows {
		if r.Key == key && s.inToken(seq) {
			return true
		}
	}
	return false
}

// takeAway abandons a row, and makes the one behind it due.
func (s *sim) takeAway(r *simRow) {
	r.abandoned, r.held, r.due = true, false, time.Time{}
	if s.off == "SKIPNODUE" {
		return
	}
	for _, seq := range s.seqs() {
		next := s.rows[seq]
		if next.Key == r.Key && !next.abandoned && (seq > r.Seq || s.off == "FIRSTDUE") {
			if !next.held {
				next.due = s.now
			}
			return
		}
	}
}

// --- the lane's one reader -----------------------------------------------------

func (s *sim) idle() bool { return s.looking == nil && s.fetched == nil && s.claimed == nil }

func (s *sim) reader() {
	switch {
	case s.off == "TWOREADERS" && s.claimed == nil && s.chance(60):
		s.both()
	case s.looking != nil:
		s.looking()
		s.looking = nil
	case s.fetched != nil:
		s.fetched()
		s.fetched = nil
	case s.claimed != nil:
		s.claimed()
		s.claimed = nil
	default:
		[]func(){s.look, s.fetch, s.due, s.claim, s.claim}[s.random.IntN(5)]()
	}
}

// both lets a look and a fetch be out at once.
func (s *sim) both() {
	switch at := s.random.IntN(2); {
	case at == 0 && s.looking == nil:
		s.look()
	case at == 0:
		s.looking()
		s.looking = nil
	case s.fetched == nil:
		s.fetch()
	default:
		s.fetched()
		s.fetched = nil
	}
}

func (s *sim) look() {
	at := s.h.at()
	if s.off == "NOHORIZON" {
		at = s.highest()
	}
	l, ok := s.t.beginLook(at)
	if !ok {
		return
	}
	if s.chance(5) {
		s.t.lookFailed(l)
		return
	}
	var rows []QueueRow
	for _, pl := range l.parts {
		rows = append(rows, s.read(func(r *simRow) bool { return r.Part == pl.Part && r.Seq > pl.Low }, l.limit)...)
	}
	s.looking = func() {
		if s.off == "HORIZONLATE" {
			s.h.sampled(HorizonSample{s.highest(), s.writers()})
			l.horizon = s.h.at()
		}
		s.t.looked(l, s.spoilt(rows), s.now)
		s.spoil()
	}
}

func (s *sim) highest() (seq int64) {
	for at := range s.rows {
		seq = max(seq, at)
	}
	return seq
}

func (s *sim) writers() (names []string) {
	for _, tx := range s.txs {
		names = append(names, tx.name)
	}
	return names
}

func (s *sim) fetch() {
	f, ok := s.t.nextFetch(s.now)
	if !ok {
		return
	}
	if s.chance(5) {
		s.t.fetchFailed(f, s.now)
		return
	}
	rows := s.read(func(r *simRow) bool { return r.Key == f.key && r.Seq >= f.from }, f.limit)
	s.asked = append(s.asked, f.key)
	s.fetched = func() {
		s.asked = nil
		s.t.fetched(f, rows, s.now)
	}
}

// due reads what is due, and rows of class 1 that wait behind the page.
func (s *sim) due() {
	if s.off != "NODUE" {
		var rows []DueRow
		for _, r := range s.read(func(r *simRow) bool { return !r.held && !r.due.IsZero() && !r.due.After(s.now) }, 1000) {
			rows = append(rows, DueRow{r.Part, r.Seq, r.Key, r.Topic})
		}
		s.dueTo(rows)
	}
	var rows []QueueRow
	for _, pl := range s.t.lows() {
		rows = append(rows, s.read(func(r *simRow) bool { return r.Part == pl.Part && r.Class > 0 && r.Seq > pl.Low }, 3)...)
	}
	if s.t.behind() {
		s.t.first(rows, s.now)
	}
}

func (s *sim) dueTo(rows []DueRow) {
	for _, row := range rows {
		rest, known := int64(0), false
		if k := s.t.keys[row.Key]; k != nil {
			rest, known = k.rest, k.knows(row.Seq) || k.want
		}
		s.t.due([]DueRow{row})
		k := s.t.keys[row.Key]
		if known || k == nil || !k.want {
			continue
		}
		switch s.off {
		case "FROMDUE":
			k.rest = row.Seq
		case "WANTLISTS":
			k.rest = rest
		}
	}
}

func (s *sim) claim() {
	if len(s.calls) >= 4 {
		return
	}
	c := s.t.choose(s.now, limits{rows: 1 + s.random.IntN(8), bytes: 1 + s.random.IntN(30), alone: s.chance(50)})
	if c == nil {
		return
	}
	if s.off == "PIPEBAD" {
		for _, ch := range c.keys {
			ch.of.hand = nil
			s.t.update(ch.of)
		}
	}
	if s.chance(5) { // it never arrives
		s.t.handBack(c)
		return
	}
	for _, n := range s.forget {
		delete(s.tokens, n)
	}
	s.forget, s.n = nil, s.n+1
	call := &simCall{n: s.n, c: c}
	for _, ref := range c.rows {
		r := s.rows[ref.Seq]
		if s.off == "NOREREAD" && (r == nil || r.abandoned) {
			call.rows = append(call.rows, Claimed{Row: outbox.Row{Partition: ref.Part}, Seq: ref.Seq})
		} else if r != nil && !r.abandoned {
			call.rows = append(call.rows, Claimed{
				Row: outbox.Row{Partition: ref.Part}, Seq: ref.Seq, KeyHash: r.Key, Attempts: r.attempts, Losses: r.Losses, Waits: s.waits(r) && s.off != "NOREREAD",
			})
		}
		s.tokens[s.n] = append(s.tokens[s.n], ref.Seq)
	}
	s.claimed = func() {
		if s.chance(5) { // its answer is lost
			s.forget = append(s.forget, call.n)
			s.t.handBack(c)
			return
		}
		call.rows = s.t.claimed(c, call.rows)
		s.calls = append(s.calls, call)
		s.send(call)
	}
}

// send asserts what a call must be.
func (s *sim) send(call *simCall) {
	for _, row := range call.rows {
		s.sent++
		r := s.rows[row.Seq]
		if r == nil || r.abandoned || s.waits(r) {
			s.violated("DECIDED", "row %d is sent, but can't go", row.Seq)
			continue
		}
		for n, seqs := range s.tokens {
			if n != call.n && !slices.Contains(s.forget, n) && slices.Contains(seqs, row.Seq) {
				s.violated("DECIDED", "row %d is sent twice at once", row.Seq)
			}
		}
		for seq, before := range s.rows {
			with := slices.ContainsFunc(call.rows, func(c Claimed) bool { return c.Seq == seq })
			if seq < row.Seq && before.Key == r.Key && !before.abandoned && !before.back && !with {
				s.violated("ORDER", "row %d of key %d is sent before row %d", row.Seq, r.Key, seq)
			}
		}
	}
}

func (s *sim) violated(property, format string, args ...any) {
	if s.only == "" || s.only == property {
		panic(property + ": " + fmt.Sprintf(format, args...))
	}
}

// --- calls -----------------------------------------------------------------------

func (s *sim) call() {
	if len(s.calls) == 0 {
		return
	}
	i := s.random.IntN(len(s.calls))
	call := s.calls[i]
	switch {
	case !call.judged:
		call.o = s.t.judge(s.now, verdict{outbox.RetryPolicy{MaxAttempts: 3, BaseDelay: 4 * time.Second, Multiplier: 2, MaxBackoff: time.Minute}, s.hold, s.random.Float64}, call.c, call.rows, s.answers(call))
		call.judged = true
	case !call.decided:
		call.decided = true
		delete(s.tokens, call.n)
		s.settle(call.o.settlement)
	default:
		s.calls = slices.Delete(s.calls, i, i+1)
		s.land(call)
	}
}

var (
	errRefused = broker.Scoped(broker.Transient, broker.ScopeRow, errors.New("refused"))
	errUnfit   = broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("too large"))
	errSilent  = broker.Classify(broker.Unknown, errors.New("no answer"))
	errLeader  = broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("no leader"))
	errRefuses = broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("connection refused"))
)

func (s *sim) answers(call *simCall) map[int]error {
	errs, broken := map[int]error{}, map[int64]bool{}
	for i, row := range call.rows {
		topic := 1 + row.KeyHash/simParts%simTopics
		switch {
		case broken[row.KeyHash]:
			errs[i] = errUnsent
			continue
		case condemned(row):
			errs[i] = errCrash
		case s.away[0]:
			errs[i] = errSilent
		case s.away[topic]:
			errs[i] = errLeader
		case s.fine || s.chance(80):
			continue
		default:
			errs[i] = []error{errRefused, errSilent, errUnsent, errUnfit, errRefuses, &panicError{"x"}}[s.random.IntN(6)]
		}
		broken[row.KeyHash] = true
	}
	return errs
}

func (s *sim) settle(o Settlement) {
	for _, ref := range o.Published {
		delete(s.rows, ref.Seq)
	}
	for _, f := range o.Failed {
		r := s.rows[f.Seq]
		if r == nil {
			continue // only without a rule
		}
		r.attempts, r.held, r.due, r.Losses = f.Attempts, f.Held, s.now.Add(f.DueIn), 0
		if f.Held {
			r.due = time.Time{}
		}
	}
	for _, a := range o.Abandoned {
		if r := s.rows[a.Seq]; r != nil {
			s.takeAway(r)
		}
	}
	for _, ref := range o.Lost {
		if r := s.rows[ref.Seq]; r != nil {
			r.Losses++
		}
	}
}

func (s *sim) land(call *simCall) {
	type memory struct {
		list []entry
		rest int64
	}
	before := map[*keyTrack]memory{}
	for _, ch := range call.c.keys {
		before[ch.of] = memory{slices.Clone(ch.of.list), ch.of.rest}
	}
	s.t.settled(call.c, call.o)
	for i, ch := range call.c.keys {
		k, was := ch.of, before[ch.of]
		switch {
		case s.off == "KEEPBUF" && call.o.fates[i].waits != 0 && len(was.list) > 0:
			k.rest = was.rest
			for j, e := range was.list {
				s.t.add(k, j, e)
			}
		case s.off == "BACKLOST" && len(call.o.fates[i].back) > 0:
			s.t.cut(k, 0)
			k.rest, k.want = call.o.fates[i].back[0].seq, false
		default:
			continue
		}
		s.t.keys[k.key] = k
		s.t.update(k)
	}
}

// --- rules left out of a look --------------------------------------------------------

// spoilt leaves out followers of a head that waits without a rest.
func (s *sim) spoilt(rows []QueueRow) []QueueRow {
	if s.off != "RESTLOST" {
		return rows
	}
	blocked := map[int64]bool{}
	return slices.DeleteFunc(rows, func(r QueueRow) bool {
		blocked[r.Key] = blocked[r.Key] || r.Waits
		return blocked[r.Key]
	})
}

func (s *sim) spoil() {
	for _, k := range s.t.keys {
		if s.off == "NOCHECK" && k.check {
			k.want, k.check = false, false
			s.t.update(k)
		}
	}
}
