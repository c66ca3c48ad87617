package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

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
		[]func(){s.look, s.fetch, s.due, s.claim, s.claim, s.lookAndClaim}[s.random.IntN(6)]()
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
		at = s.seq
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
			s.h.sampled(HorizonSample{s.seq, s.writers()})
			l.horizon = s.h.at()
		}
		s.t.looked(l, s.spoilt(rows), s.now)
		s.spoil()
	}
}

// lookAndClaim is both in one step.
func (s *sim) lookAndClaim() {
	if len(s.calls) >= 4 || len(s.forget) > 0 {
		return
	}
	if s.off == "NOTFRESH" { // it takes partitions for such of which nothing is known
		for part, p := range s.t.parts {
			s.t.drop(part)
			s.t.take(part)
			s.t.parts[part].low, s.t.parts[part].ended = p.low, true
		}
	}
	l, ok := s.t.beginFresh(s.h.at(), 1)
	if !ok {
		return
	}
	if s.chance(5) {
		s.t.lookFailed(l)
		return
	}
	s.n++
	q := LookRequest{N: s.n, Limit: l.limit, Rows: 1 + s.random.IntN(8), Bytes: 1 + s.random.IntN(30)}
	var rows []QueueRow
	for _, pl := range l.parts {
		rows = append(rows, s.read(func(r *simRow) bool { return r.Part == pl.Part && r.Seq > pl.Low }, l.limit)...)
	}
	slices.SortFunc(rows, func(a, b QueueRow) int { return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Seq, b.Seq)) })
	claim, ok := q.Claim(rows)
	if !ok {
		s.looking = func() { s.t.looked(l, rows, s.now) }
		return
	}
	call := &simCall{n: q.N}
	for _, row := range claim.Rows {
		r := s.rows[row.Seq]
		call.rows = append(call.rows, Claimed{Row: outbox.Row{Partition: row.Part}, Seq: row.Seq, KeyHash: r.Key, Attempts: r.attempts})
		s.tokens[q.N] = append(s.tokens[q.N], row.Seq)
	}
	slices.SortFunc(call.rows, func(a, b Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	s.claimed = func() {
		if s.chance(5) { // its answer is lost
			s.forget = append(s.forget, q.N)
			s.t.lookFailed(l)
			return
		}
		s.fresh++
		call.c = s.t.chooseFound(rows)
		s.t.looked(l, rows, s.now)
		call.rows = s.t.claimed(call.c, call.rows)
		s.calls = append(s.calls, call)
		if !call.c.unsent {
			s.send(call)
		}
	}
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
		case broken[row.KeyHash] || call.c.unsent:
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
		case s.only != "":
			errs[i] = []error{errRefused, errUnsent}[s.random.IntN(2)]
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
