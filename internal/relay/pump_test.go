package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// pump is a lane whose store is a slice and whose broker is a function: it makes
// one call after the other and counts.
type pump struct {
	t      *track
	b      *breakers
	now    time.Time
	rows   map[int64]QueueRow
	paid   map[int64]int
	due    map[int64]time.Time
	parts  int
	top    int64 // the highest seq
	answer func(row QueueRow, with []QueueRow) error

	calls, probes, read int
	published           []int64
	abandoned           []Abandonment
	changes             []change
	breaks              int
}

func newPump(parts int, rows ...QueueRow) *pump {
	p := &pump{
		now: time.Unix(1000, 0), rows: map[int64]QueueRow{}, paid: map[int64]int{}, due: map[int64]time.Time{}, parts: parts,
		answer: func(QueueRow, []QueueRow) error { return nil },
	}
	p.restart()
	p.add(rows...)
	return p
}

// restart is a new process: it remembers nothing.
func (p *pump) restart() {
	p.b = newBreakers(func() float64 { return 0.5 })
	p.t = newTrack(p.b)
	for part := range p.parts {
		p.t.take(part)
	}
}

// queue makes n rows, each of a key of its own, from seq on.
func queue(seq int64, n int, topic int64) []QueueRow {
	rows := make([]QueueRow, n)
	for i := range rows {
		at := seq + int64(i)
		rows[i] = QueueRow{Seq: at, Key: 1<<20*topic + at, Topic: topic, Bytes: 100}
	}
	return rows
}

func (p *pump) add(rows ...QueueRow) {
	for _, row := range rows {
		p.rows[row.Seq], p.top = row, max(p.top, row.Seq)
		p.t.poke(row.Part)
	}
}

func (p *pump) waits(seq int64) bool { return p.due[seq].After(p.now) }

// sorted are the rows that are left, by (part, seq).
func (p *pump) sorted() []QueueRow {
	return slices.SortedFunc(maps.Values(p.rows), func(a, b QueueRow) int { return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Seq, b.Seq)) })
}

// look reads on until there is no more, or no room.
func (p *pump) look() {
	for {
		l, ok := p.t.beginLook(p.top)
		if !ok {
			return
		}
		var rows []QueueRow
		all := p.sorted()
		for _, pl := range l.parts {
			n := 0
			for _, row := range all {
				if row.Part == pl.Part && row.Seq > pl.Low && n < l.limit {
					row.Waits = p.waits(row.Seq)
					rows = append(rows, row)
					n++
				}
			}
		}
		p.read += len(rows)
		p.t.looked(l, rows, p.now)
	}
}

func (p *pump) fetch() {
	for {
		f, ok := p.t.nextFetch(p.now)
		if !ok {
			return
		}
		var rows []QueueRow
		for _, row := range p.sorted() {
			if row.Key == f.key && row.Seq >= f.from && len(rows) < f.limit {
				row.Waits = p.waits(row.Seq)
				rows = append(rows, row)
			}
		}
		p.t.fetched(f, rows, p.now)
	}
}

// choose reads what there is and takes the next call's rows.
func (p *pump) choose() *choice {
	p.look()
	var due []DueRow
	for seq, at := range p.due {
		if row, ok := p.rows[seq]; ok && !at.After(p.now) {
			due = append(due, DueRow{row.Part, seq, row.Key, row.Topic})
		}
	}
	p.t.due(due)
	p.fetch()
	return p.t.choose(p.now, limits{rows: 500, bytes: claimBytes, alone: true})
}

// call makes one, or lets time pass.
func (p *pump) call() {
	c := p.choose()
	if c == nil {
		p.now = p.now.Add(time.Second)
		return
	}
	p.end(c)
}

func (p *pump) end(c *choice) {
	p.calls++
	if c.probe {
		p.probes++
	}
	var with []QueueRow
	var rows []Claimed
	for _, ref := range c.rows {
		row := p.rows[ref.Seq]
		with = append(with, row)
		rows = append(rows, Claimed{Row: outbox.Row{Partition: ref.Part}, Seq: ref.Seq, KeyHash: row.Key, Attempts: p.paid[ref.Seq], Losses: row.Losses})
	}
	errs := map[int]error{}
	for i, row := range with {
		if err := p.answer(row, with); err != nil {
			errs[i] = err
		}
	}
	rows = p.t.claimed(c, rows)
	o := p.t.judge(p.now, verdict{retry: outbox.Config{}.WithDefaults().Retry, random: func() float64 { return 0.5 }}, c, rows, errs)
	p.settle(o)
	p.t.settled(c, o)
}

func (p *pump) settle(o outcome) {
	for _, ref := range o.settlement.Published {
		p.published = append(p.published, ref.Seq)
		delete(p.rows, ref.Seq)
	}
	for _, f := range o.settlement.Failed {
		p.paid[f.Seq], p.due[f.Seq] = f.Attempts, p.now.Add(f.DueIn)
	}
	for _, a := range o.settlement.Abandoned {
		p.abandoned = append(p.abandoned, a)
		delete(p.rows, a.Seq)
	}
	for _, ref := range o.settlement.Lost {
		row := p.rows[ref.Seq]
		row.Losses++
		p.rows[ref.Seq] = row
	}
	p.changes = append(p.changes, o.changes...)
	p.breaks += o.breaks
}

// until makes at most n calls, or as many pauses, until ok.
func (p *pump) until(n int, ok func() bool) bool {
	for range n {
		if ok() {
			return true
		}
		p.call()
	}
	return ok()
}

// of counts rows of a topic that are left.
func (p *pump) of(topic int64) (n int) {
	for _, row := range p.rows {
		if row.Topic == topic {
			n++
		}
	}
	return n
}
