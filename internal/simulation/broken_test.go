package simulation

import (
	"testing"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

// patch replaces a text of the relay. Where the text isn't there any more, the rule is
// written in another way, and the patch has to follow.
type patch struct{ file, old, new string }

// without are the rules of the models that are the relay's own, each as what the relay
// would be without it. off says that the rule is left out.
var without = map[string][]patch{
	"RELEASEDOUBT": {{"share.go", "\t\tl.doubts()\n\t\treturn err", "\t\tif !off(\"RELEASEDOUBT\") {\n\t\t\tl.doubts()\n\t\t}\n\t\treturn err"}},
	"PIPEBAD":      {{"choose.go", "\tt.parts[k.part].hand += n\n", "\tt.parts[k.part].hand += n\n\tif off(\"PIPEBAD\") {\n\t\tk.hand = nil\n\t}\n"}},
	"NOHEAD":       {{"choose.go", "\tif f.waits != 0 {\n", "\tif f.waits != 0 && off(\"NOHEAD\") {\n\t} else if f.waits != 0 {\n"}},
	"NOPREFIX":     {{"call.go", "prefix := c.f.slot != nil ||", "prefix := off(\"NOPREFIX\") || c.f.slot != nil ||"}},
	"NOCUT":        {{"settle.go", "read(errs[i]), broken[key]}", "read(errs[i]), broken[key] && !off(\"NOCUT\")}"}},
	"HORIZONLATE":  {{"read.go", "\t\tl.track.looked(", "\t\tif off(\"HORIZONLATE\") {\n\t\t\tl.mu.Unlock()\n\t\t\t_ = l.r.raise(hard)\n\t\t\tl.mu.Lock()\n\t\t\tlook.horizon = l.r.horizon.Load().at()\n\t\t}\n\t\tl.track.looked("}},
	"RESTLOST":     {{"look.go", "\tvar touched []*keyTrack\n", "\tvar touched []*keyTrack\n\tif off(\"RESTLOST\") {\n\t\trows = spoilt(rows)\n\t}\n"}},
	"NOCHECK":      {{"look.go", "\tif k.want {\n\t\treturn false\n", "\tif k.want || off(\"NOCHECK\") {\n\t\treturn false\n"}},
	"FROMDUE": {
		{"fetch.go", "\tfrom := min(row.Seq, p.low+1)\n", "\tfrom := min(row.Seq, p.low+1)\n\tif off(\"FROMDUE\") {\n\t\tfrom = row.Seq\n\t}\n"},
		{"fetch.go", "\t\tfrom = min(from, k.list[0].seq)\n", "\t\tif !off(\"FROMDUE\") {\n\t\t\tfrom = min(from, k.list[0].seq)\n\t\t}\n"},
	},
	"WANTLISTS":   {{"fetch.go", "\tif k.rest == 0 || from < k.rest {\n", "\tif !off(\"WANTLISTS\") && (k.rest == 0 || from < k.rest) {\n"}},
	"BACKLOST":    {{"choose.go", "\t\tt.relist(k, f.back)\n", "\t\tif !off(\"BACKLOST\") {\n\t\t\tt.relist(k, f.back)\n\t\t} else if len(f.back) > 0 {\n\t\t\tt.cut(k, 0)\n\t\t\tk.rest, k.want = f.back[0].seq, false\n\t\t}\n"}},
	"KEEPBUF":     {{"choose.go", "\t\tt.block(k, f.waits)\n", "\t\tif !off(\"KEEPBUF\") {\n\t\t\tt.block(k, f.waits)\n\t\t}\n"}},
	"TWOREADERS":  {{"read.go", "\t\t\tl.track.fetched(", "\t\t\tif off(\"TWOREADERS\") {\n\t\t\t\tl.mu.Unlock()\n\t\t\t\ttime.Sleep(1200 * time.Millisecond)\n\t\t\t\tl.mu.Lock()\n\t\t\t\tl.track.pokeAll()\n\t\t\t\tl.mu.Unlock()\n\t\t\t\t_, _ = l.looks(hard)\n\t\t\t\tl.mu.Lock()\n\t\t\t}\n\t\t\tl.track.fetched("}},
	"KNOWNLATE":   {{"breaker.go", "t.known != 0 && t.known < c.began && !b.lane.open()", "t.known != 0 && (t.known < c.began || off(\"KNOWNLATE\")) && !b.lane.open()"}},
	"PAYALL":      {{"settle.go", "row.means == quiet && (h.answered || h.convicts)", "row.means == quiet && (h.answered || h.convicts || off(\"PAYALL\"))"}},
	"PAYTOPIC":    {{"settle.go", "\tt.follow(o, was, open)\n", "\tif lane && off(\"PAYTOPIC\") {\n\t\tfor _, h := range topics {\n\t\t\th.convicts = true\n\t\t}\n\t}\n\tt.follow(o, was, open)\n"}},
	"NOBODY":      {{"breaker.go", "return !c.probe && c.count >= mostSilent", "return !off(\"NOBODY\") && !c.probe && c.count >= mostSilent"}},
	"TOGETHER":    {{"choose.go", "\tcase mostSilent:\n\t\tkeys = 1\n", "\tcase mostSilent:\n\t\tif !off(\"TOGETHER\") {\n\t\t\tkeys = 1\n\t\t}\n"}},
	"ALONEATONCE": {{"choose.go", "\t\trows = min(rows, silentRows[bucket])\n", "\t\tif rows = min(rows, silentRows[bucket]); off(\"ALONEATONCE\") {\n\t\t\tkeys = 1\n\t\t}\n"}},
	"PROBESCOUNT": {{"breaker.go", "\t\tif counts && !c.probe {\n", "\t\tif counts && (!c.probe || off(\"PROBESCOUNT\")) {\n"}},
	"SAMEPROBE":   {{"choose.go", "\tcase b1 != b2: // what", "\tcase off(\"SAMEPROBE\"):\n\tcase b1 != b2: // what"}},
	"NOTOPIC":     {{"choose.go", "\tcase t.breakers.topicSilent(a.topic) != ", "\tcase !off(\"NOTOPIC\") && t.breakers.topicSilent(a.topic) != "}},
	"SOLO":        {{"claims.go", "\tif c == nil || !c.alone {\n", "\tif c == nil || !c.alone || off(\"SOLO\") {\n"}},
	"OTHERSGO": {
		{"claims.go", "\tgate := l.r.gate\n\tif c, leave", "\tgate := l.gate()\n\tif c, leave"},
		{"claims.go", "\tgate, now := l.r.gate, time.Now()\n", "\tgate, now := l.gate(), time.Now()\n"},
		{"claims.go", "\tgate := l.r.gate\n\twanted :=", "\tgate := l.gate()\n\twanted :="},
		{"lane.go", "l.r.gate.opensAt()", "l.gate().opensAt()"},
	},
	"NOINIT": {
		{"transact.go", "tx, mark, err := l.openID(ctx, transactionalID(", "opened := l.openID\n\t\tif off(\"NOINIT\") || off(\"MARKERFIRST\") {\n\t\t\topened = l.peek\n\t\t}\n\t\ttx, mark, err := opened(ctx, transactionalID("},
		{"transact.go", "\t\ttx.Close()\n\t\ts := Settlement", "\t\tif tx != nil {\n\t\t\ttx.Close()\n\t\t}\n\t\ts := Settlement"},
	},
	"MARKERFIRST": nil, // with NOINIT
	"NOMARKER":    {{"transact.go", "\t\tif mark.N == token.N {\n", "\t\tif off(\"UPTO\") && mark.N > token.N {\n\t\t\ts.Published = token.Rows\n\t\t} else if mark.N == token.N && !off(\"NOMARKER\") {\n"}},
	"UPTO":        nil, // with NOMARKER
	"WHOLE":       {{"transact.go", "\tif note == \"\" {\n", "\tif note == \"\" || off(\"WHOLE\") {\n"}},
	"BELIEVE":     {{"transact.go", "\tif c.hanging || c.panic != nil ||", "\tif off(\"BELIEVE\") {\n\t\treturn\n\t}\n\tif c.hanging || c.panic != nil ||"}},
	"REINIT":      {{"transact.go", "error { return tx.Publish(ctx, mark, messages) }", "error {\n\t\tif off(\"REINIT\") {\n\t\t\ttx = c.reopened(ctx, tx)\n\t\t}\n\t\treturn tx.Publish(ctx, mark, messages)\n\t}"}},
	"UNSAVED": {
		{"flight.go", "f.c.durable || f.slot != nil }", "f.c.durable || f.slot != nil && !off(\"UNSAVED\") }"},
		{"transact.go", "Durable: true}", "Durable: !off(\"UNSAVED\")}"},
	},
	"EARLY": {{"quarantine.go", "return row.Losses >= crashLosses", "return row.Losses >= crashLosses || off(\"EARLY\") && row.Losses >= 3"}},
}

// spoiling is what these patches need.
const spoiling = `package relay

import (
	"context"
	"os"
	"slices"
	"sync"

	"github.com/waybill-go/waybill/broker"
)

var leftOut = os.Getenv("WAYBILL_WITHOUT")

func off(rule string) bool { return leftOut == rule }

var gates sync.Map // by lane

// gate is the process's, or without OTHERSGO one of the lane.
func (l *lane) gate() *Gate {
	if !off("OTHERSGO") {
		return l.r.gate
	}
	own, _ := gates.LoadOrStore(l, NewGate())
	return own.(*Gate)
}

// peek reads the mark of a transactional id, and opens it or not.
func (l *lane) peek(ctx context.Context, id string) (tx broker.Transactor, mark broker.Mark, err error) {
	mark, err = l.Broker.(interface {
		Peek(ctx context.Context, id string) (broker.Mark, error)
	}).Peek(ctx, id)
	if err == nil && off("MARKERFIRST") {
		tx, _, err = l.openID(ctx, id)
	}
	return tx, mark, err
}

// reopened opens the id of a claim's slot behind the claim.
func (c *call) reopened(ctx context.Context, tx broker.Transactor) broker.Transactor {
	if again, _, err := c.l.openID(ctx, c.f.slot.id); err == nil {
		return again
	}
	return tx
}

// spoilt leaves out what waits, and what is behind it, without a rest.
func spoilt(rows []QueueRow) []QueueRow {
	blocked := map[int64]bool{}
	return slices.DeleteFunc(rows, func(r QueueRow) bool {
		blocked[r.Key] = blocked[r.Key] || r.Waits
		return blocked[r.Key]
	})
}
`

// broken builds this package's tests with a relay that can do without its rules.
func broken(t *testing.T) (program string) {
	t.Helper()
	var all []simtest.Patch
	for _, patches := range without {
		for _, p := range patches {
			all = append(all, simtest.Patch{File: "../relay/" + p.file, Old: p.old, New: p.new})
		}
	}
	return simtest.Build(t, all, map[string]string{"../relay/off.go": spoiling})
}
