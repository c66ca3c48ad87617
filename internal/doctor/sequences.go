package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/uow"
)

// numbered are the columns that sequences number.
var numbered = []struct{ feature, sequence, table, column string }{
	{"outbox", "outbox_messages_seq_seq", "outbox_messages", "seq"},
	{"outbox", "outbox_lanes_id_seq", "outbox_lanes", "id"},
	{"outbox", "outbox_log_id_seq", "outbox_log", "id"},
	{"outbox", "outbox_actions_id_seq", "outbox_actions", "id"},
	{"history", "history_position", "history", "position"},
	{"repository", "history_position", "events", "position"},
	{"subscription", "dead_letters_seq_seq", "dead_letters", "seq"},
	{"subscription", "dead_letter_actions_id_seq", "dead_letter_actions", "id"},
}

// Behind returns those that are behind their tables.
func Behind(ctx context.Context, p uow.Provider) []Finding {
	e := &exam{provider: p, limits: usual, current: map[string]bool{}}
	if !e.postgres() {
		return nil
	}
	e.run(ctx, check{"schema", "", (*exam).schema})
	e.run(ctx, check{"sequences", "", (*exam).sequences})
	return slices.DeleteFunc(e.findings, func(f Finding) bool { return f.Check != "sequences" || f.Severity != Critical })
}

// sequences looks for those that are behind their tables. A restore of single tables leaves
// them out, and so does logical replication. Nothing else tells: a number that is free by now,
// as its row was removed, is given again, to an event that goes before older ones.
func (e *exam) sequences(ctx context.Context, db bun.IDB) (string, error) {
	highest, behind := map[string]int64{}, map[string]string{}
	for _, n := range numbered {
		if !e.current[n.feature] {
			continue
		}
		var last *int64 // nil: this role may not read it, as the check rights says
		var top int64
		err := db.NewRaw("SELECT CASE WHEN has_sequence_privilege(s.oid, 'SELECT') THEN coalesce(pg_sequence_last_value(s.oid), 0) END, coalesce((SELECT max(?) FROM ?), 0)"+
			" FROM (SELECT to_regclass(?) AS oid) AS s", bun.Ident(n.column), bun.Ident(n.table), n.sequence).Scan(ctx, &last, &top)
		if err != nil {
			return "", err
		}
		// Of two tables that one sequence numbers, the higher one counts.
		if last != nil && *last < top && top > highest[n.sequence] {
			highest[n.sequence], behind[n.sequence] = top, fmt.Sprintf("it is at %d, and %s.%s at %d", *last, n.table, n.column, top)
		}
	}
	for _, sequence := range slices.Sorted(maps.Keys(behind)) {
		e.add(Critical, "sequence "+sequence, behind[sequence]+": it was not restored with its table. What gets a number that is there is refused, and what gets a lower one is taken for older than it is",
			fmt.Sprintf("with all engines and writers stopped: SELECT setval('%s', %d)", sequence, highest[sequence]))
	}
	return "no sequence is behind its table", nil
}
