package whole

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/simulation/simtest"
)

// always are patches that change no rule: a bubble's time passes only while everybody waits
// for something that the bubble knows of, and a lock isn't such a thing; and what is left to
// chance has to come from the seed.
var always = []simtest.Patch{
	{File: "../../../subscription/runner.go", Old: "alone    sync.RWMutex", New: "alone    turn"},
	{File: "../../../subscription/runner.go", Old: "rand.Float64()", New: "chance()"},
	{File: "../../../subscription/runner.go", Old: "\t\"math/rand/v2\"\n", New: ""},
	{File: "../../../subscription/waiting.go", Old: "\tmu   sync.Mutex\n\tn    int64", New: "\tmu   turn\n\tn    int64"},
	{File: "../../../subscription/waiting.go", Old: "\t\"sync\"\n", New: ""},
	{File: "../../../subscription/instances.go", Old: "for r := range in.runners {", New: "for _, r := range inOrder(in.runners) {"},
	{File: "../../../uow/commit.go", Old: "slices.Collect(maps.Keys(p.pokes))", New: "inOrder(maps.Keys(p.pokes))"},
	{File: "../../../uow/manager.go", Old: "rand.N(longest)", New: "time.Duration(time.Now().UnixNano()*31) % longest"},
	{File: "../../../uow/manager.go", Old: "\t\"math/rand/v2\"\n", New: ""},
}

// turns is what these patches need.
const turns = `package subscription

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/uow"
)

func off(rule string) bool { return os.Getenv("WAYBILL_WITHOUT") == rule }

type apartKey struct{}

// elsewhere says that somebody else claims the messages.
func elsewhere(ctx context.Context) bool { return ctx.Value(apartKey{}) != nil }

// claimsApart handles messages, and claims them in a transaction before or behind that.
func (r *Runner) claimsApart(ctx context.Context, all []work) error {
	claim := func() error { return r.do(ctx, r.home(all[0].message).claim(messagesOf(all))...) }
	if off("INBOXFIRST") {
		if err := claim(); err != nil {
			return err
		}
	}
	if err := r.handle(context.WithValue(ctx, apartKey{}, true), all...); err != nil || off("INBOXFIRST") {
		return err
	}
	return claim()
}

func none(statements []uow.Statement, ctx context.Context) []uow.Statement {
	if elsewhere(ctx) {
		return nil
	}
	return statements
}

// without leaves conditions out of a statement, and keeps its arguments.
func without(rule, condition, query string) string {
	if !off(rule) {
		return query
	}
	return strings.Replace(query, condition, "? <> ''", 1)
}

// turn is a lock, for many or for one.
type turn struct {
	mu      sync.Mutex
	readers int
	writer  bool
	changed chan struct{}
}

func (t *turn) wait(free func() bool, take func()) {
	for {
		t.mu.Lock()
		if free() {
			take()
			t.mu.Unlock()
			return
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		<-changed
	}
}

func (t *turn) leave(give func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	give()
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

func (t *turn) Lock()    { t.wait(func() bool { return !t.writer && t.readers == 0 }, func() { t.writer = true }) }
func (t *turn) Unlock()  { t.leave(func() { t.writer = false }) }
func (t *turn) RLock()   { t.wait(func() bool { return !t.writer }, func() { t.readers++ }) }
func (t *turn) RUnlock() { t.leave(func() { t.readers-- }) }

// inOrder are the runners by name: those of a map come in an order of chance.
func inOrder(of map[*Runner]bool) []*Runner {
	return slices.SortedFunc(maps.Keys(of), func(a, b *Runner) int { return strings.Compare(a.stream.Name, b.stream.Name) })
}

// chance is a number that depends on nothing but the bubble's time.
func chance() float64 { return float64(time.Now().UnixNano()%9973) / 9973 }

`

// offs is what patches of other packages need.
const offs = `

import "os"

func off(rule string) bool { return os.Getenv("WAYBILL_WITHOUT") == rule }
`

// rules are the switches: each leaves a rule out.
var rules = map[string][]simtest.Patch{
	"ACKFIRST": {{
		File: "../../../subscription/lanes.go", Old: "\tctx, cancel := s.unlessLost(m)\n\ts.mu.Unlock()\n",
		New: "\tctx, cancel := s.unlessLost(m)\n\tif off(\"ACKFIRST\") {\n\t\ts.settled = append(s.settled, m.deliveries...)\n\t\tsignal(s.acks)\n\t}\n\ts.mu.Unlock()\n",
	}},
	"INBOXFIRST": {{
		File: "../../../subscription/handle.go", Old: "\t// The metadata is that of the first",
		New: "\tif (off(\"INBOXFIRST\") || off(\"INBOXLAST\")) && !elsewhere(ctx) {\n\t\treturn r.claimsApart(ctx, all)\n\t}\n\t// The metadata is that of the first",
	}},
	"INBOXLAST": {{
		File: "../../../subscription/handle.go", Old: "r.guard(unit, r.home(all[0].message).claim(messagesOf(all))...)", New: "r.guard(unit, none(r.home(all[0].message).claim(messagesOf(all)), ctx)...)",
	}},
	"SKIPPARKED": {
		{
			File: "../../../subscription/inbox.go", Old: "\treturn uow.Statement{\n\t\tQuery: claim{",
			New: "\tquery = without(\"SKIPPARKED\", \"NOT EXISTS (SELECT 1 FROM dead_letters WHERE subscription = ? AND key_id = v.column2 AND \"+holding+\")\", query)\n\treturn uow.Statement{\n\t\tQuery: claim{",
		},
		{File: "../../../subscription/inbox.go", Old: "\t\tr.behind = behind[m.keyID]\n", New: "\t\tif !off(\"SKIPPARKED\") {\n\t\t\tr.behind = behind[m.keyID]\n\t\t}\n"},
		{File: "../../../subscription/session.go", Old: "\t\tm.behind = behind + 1\n", New: "\t\tif !off(\"SKIPPARKED\") {\n\t\t\tm.behind = behind + 1\n\t\t}\n"},
	},
	"NOWAIT": {{
		File: "../../../subscription/lanes.go", Old: "\tcase failed, delayed:\n",
		New: "\tcase failed, delayed:\n\t\tif off(\"NOWAIT\") && len(q.messages) > 1 {\n\t\t\tq.messages = append(slices.Clone(q.messages[1:]), m)\n\t\t\ts.ready <- q\n\t\t\tbreak\n\t\t}\n",
	}},
	"NOACKAGAIN": {{
		File: "../../../subscription/session.go", Old: "\t\tif err != nil {\n\t\t\t// Nobody can", New: "\t\tif off(\"NOACKAGAIN\") {\n\t\t\terr = nil\n\t\t}\n\t\tif err != nil {\n\t\t\t// Nobody can",
	}},
	"NOTCAREFUL": {{
		File: "../../../subscription/handle.go", Old: "m.parked != nil || r.presence.careful() {", New: "m.parked != nil || r.presence.careful() && !off(\"NOTCAREFUL\") {",
	}},
	"RETRYUNKNOWN": {{
		File: "../../../uow/unit.go", Old: "ok && unknown != nil {\n\t\treturn false", New: "ok && unknown != nil {\n\t\treturn off(\"RETRYUNKNOWN\")",
	}},
	"OUTBOXAPART": {{
		File: "../../../uow/commit.go", Old: "\tif len(rows) > 0 {\n",
		New: "\tif off(\"OUTBOXAPART\") && !p.session.Began() {\n\t\ttext, _ := outboxdb.Insert(rows).AppendQuery(p.provider.DB().QueryGen(), nil)\n\t\tif _, err := p.provider.DB().DB.ExecContext(ctx, string(text)); err != nil {\n\t\t\treturn nil, err\n\t\t}\n\t} else if len(rows) > 0 {\n",
	}},
	"MARKERFIRST": nil, // the broker's, see bus.Transact
	"NOMARKER":    {{File: "../../relay/transact.go", Old: "if mark.N == token.N {", New: "if mark.N == token.N && !off(\"NOMARKER\") {"}},
	"BELIEVE":     {{File: "../../relay/transact.go", Old: "|| errors.Is(err, broker.ErrUndecided) {", New: "|| errors.Is(err, broker.ErrUndecided) && !off(\"BELIEVE\") {"}},
	"STOPWAITING": {{
		File: "../../timerdb/timer.go", Old: "&statement{query: stopQuery,", New: "&statement{query: onlyWaiting(stopQuery),",
	}},
	"SENTAPART": {
		{
			File: "../../timerdb/promote.go", Old: "if _, err := tx.Tx.ExecContext(ctx, string(query)); err != nil {",
			New: "if off(\"SENTAPART\") {\n\t\tdefer func() { s.behind = string(query) }()\n\t} else if _, err := tx.Tx.ExecContext(ctx, string(query)); err != nil {",
		},
		{
			File: "../../timerdb/promote.go", Old: "\tif err != nil {\n\t\treturn Promoted{}, fmt.Errorf(\"timers: send those",
			New: "\tif off(\"SENTAPART\") && err == nil && p.Sent > 0 {\n\t\t_, err = s.db.DB.ExecContext(ctx, s.behind)\n\t}\n\tif err != nil {\n\t\treturn Promoted{}, fmt.Errorf(\"timers: send those",
		},
		{File: "../../timerdb/store.go", Old: "\tcounting sync.Mutex\n", New: "\tbehind   string\n\tcounting sync.Mutex\n"},
	},
	"HANDLEDAPART": {{
		File: "../../../command/queue.go", Old: "\tif meta.Command.Timer {\n\t\tif err := b.waits(",
		New: "\tif meta.Command.Timer && off(\"HANDLEDAPART\") {\n\t\tif err := h.handledApart(ctx, meta.ID); err != nil {\n\t\t\treturn err\n\t\t}\n\t} else if meta.Command.Timer {\n\t\tif err := b.waits(",
	}},
	"NOTTHERE": {
		{File: "../../../command/queue.go", Old: "\tif err == nil && !there {\n", New: "\tif err == nil && !there && !off(\"NOTTHERE\") {\n"},
		{File: "../../../command/queue.go", Old: "Rows: 1, Else:", New: "Rows: one(), Else:"},
	},
	"NOARRIVED": {{
		File: "../../../process/hear.go", Old: "\tif r.status == awaited {\n\t\tif err := u.Exec(", New: "\tif r.status == awaited && !off(\"NOARRIVED\") {\n\t\tif err := u.Exec(",
	}},
	"SENDBEHIND": {{
		File: "../../../process/hear.go", Old: "\t\tif err := u.Send(ctx, c, o); err != nil {\n",
		New: "\t\tif off(\"SENDBEHIND\") {\n\t\t\tp.sendBehind(u, c, o)\n\t\t} else if err := u.Send(ctx, c, o); err != nil {\n",
	}},
	"KEYAPART": {{
		File: "../../../command/work.go", Old: "\tdb, err := uow.DB(ctx)\n", New: "\tdb, err := h.keys(ctx)\n",
	}},
	"NOVERSION": {{
		File: "../../../repository/document.go", Old: "bun.SafeQuery(updateDocument,", New: "bun.SafeQuery(unversioned(updateDocument),",
	}},
}

// program is this package's tests with all patches.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		all := slices.Clone(always)
		for _, patches := range rules {
			all = append(all, patches...)
		}
		text, err := os.ReadFile(simtest.Build(t, all, map[string]string{
			"../../../subscription/simulation.go": turns,
			"../../../uow/simulation.go":          "package uow\n\nimport (\n\t\"cmp\"\n\t\"iter\"\n\t\"slices\"\n\n\t\"github.com/waybill-go/waybill/outbox\"\n)" + offs + pokes,
			"../../relay/simulation.go":           "package relay" + offs,
			"../../timerdb/simulation.go":         "package timerdb" + offs + onlyWaiting,
			"../../../command/simulation.go":      handledApart,
			"../../../process/simulation.go":      sendBehind,
			"../../../repository/simulation.go":   "package repository\n\nimport \"strings\"" + offs + unversioned,
		}))
		require.NoError(t, err)
		built.path = filepath.Join(built.dir, "whole.test")
		require.NoError(t, os.WriteFile(built.path, text, 0o700))
	})
	require.NotEmpty(t, built.path)
	return built.path
}

// built is the program, which is built once.
var built struct {
	once      sync.Once
	dir, path string
}

const unversioned = `
func unversioned(query string) string {
	if off("NOVERSION") {
		return strings.Replace(query, "version = ? AND unit", "version > 0 * ? AND unit", 1)
	}
	return query
}
`

const onlyWaiting = `
func onlyWaiting(query string) string {
	if off("STOPWAITING") {
		return query + " AND status = 'waiting'"
	}
	return query
}
`

// handledApart is what the switches of commands need.
const handledApart = `package command

import (
	"context"
	"os"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func off(rule string) bool { return os.Getenv("WAYBILL_WITHOUT") == rule }

// handledApart deletes a timer's row in a transaction of its own.
func (h *Handlers) handledApart(ctx context.Context, id string) error {
	db := h.cfg.Units.Providers()[0].DB()
	text, err := timerdb.Handled(id).AppendQuery(db.QueryGen(), nil)
	if err != nil {
		return err
	}
	done, err := db.DB.ExecContext(ctx, string(text))
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err == nil && n == 0 {
		return subscription.Drop(errStopped)
	}
	return nil
}

// one is how many rows a handled timer has to have.
func one() int64 {
	if off("NOTTHERE") {
		return -1
	}
	return 1
}

// keys is where idempotency keys are stored.
func (h *Handlers) keys(ctx context.Context) (bun.IDB, error) {
	if off("KEYAPART") {
		return h.cfg.Units.Providers()[0].DB(), nil
	}
	return uow.DB(ctx)
}
`

// sendBehind is what the switches of processes need.
const sendBehind = `package process

import (
	"context"
	"os"

	"github.com/waybill-go/waybill/uow"
)

func off(rule string) bool { return os.Getenv("WAYBILL_WITHOUT") == rule }

// sendBehind sends a command in a unit of its own, when the process's has committed.
func (p *process) sendBehind(u *uow.Unit, c any, o uow.CommandOptions) {
	u.AfterCommit(func(context.Context) {
		_ = p.units.Do(context.Background(), func(ctx context.Context) error {
			own, err := uow.From(ctx)
			if err != nil {
				return err
			}
			return own.Send(ctx, c, o)
		})
	})
}
`

const pokes = `
func inOrder(all iter.Seq[outbox.Poke]) []outbox.Poke {
	return slices.SortedFunc(all, func(a, b outbox.Poke) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Partition, b.Partition))
	})
}
`
