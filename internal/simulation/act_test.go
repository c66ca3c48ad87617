package simulation

import (
	"fmt"
	"strings"

	"github.com/waybill-go/waybill/internal/relay"
)

// verb is what an act does.
type verb uint8

const (
	// To a statement.
	answer verb = iota // it runs, if it hasn't, and is answered
	run                // it runs, and the answer is on its way
	refuse             // it doesn't run, and fails
	lose               // it fails, and may still run
	late               // one that nobody waits for runs
	// To a call of the broker.
	store  // its next message is stored
	mumble // and nobody hears of that
	reject // its next message is refused for now
	unfit  // or for ever
	ignore // or neither stored nor answered
	reply  // the rest of its messages are stored, and it returns
	drop   // its connection is lost: what was not stored by now isn't
	hang   // it ignores its context
	// To processes, and to all.
	start
	kill
	stop
	pass // time, by milliseconds
	away // a topic, or with 0 the broker, refuses
	hush // or doesn't answer
	back // or is there again
	// Of units of work and operators.
	begin
	insert
	commit
	rollback
	skip
	retry
	hold
	restart // the database's server crashes, and is there again
)

var verbs = [...]string{
	"answer", "run", "refuse", "lose", "late", "store", "mumble", "reject", "unfit", "ignore", "reply", "drop", "hang",
	"start", "kill", "stop", "pass", "away", "hush", "back", "begin", "insert", "commit", "rollback", "skip", "retry", "hold", "restart",
}

// name is what an act is about: the n-th statement of its kind of a process, or of a lane of
// it, or a call of the broker that begins with a row.
type name struct {
	proc int
	kind string
	lane relay.LaneID // 0: of none
	n    int64
}

// act is one thing that happens in a schedule.
type act struct {
	verb verb
	of   name
}

func (a act) String() string {
	text := verbs[a.verb]
	if a.of.proc != 0 {
		text += fmt.Sprintf(" process %d", a.of.proc)
	}
	if a.of.kind != "" {
		text += " " + a.of.kind
	}
	if a.of.lane > 1 {
		text += fmt.Sprintf(" of lane %d", a.of.lane)
	}
	return fmt.Sprintf("%s %d", text, a.of.n)
}

func lines(acts []act) string {
	var text strings.Builder
	for _, a := range acts {
		fmt.Fprintln(&text, a)
	}
	return text.String()
}
