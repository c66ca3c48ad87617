package outboxdb

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"
)

// ownPrefix stands before the context's name in outbox_settings, once the context has had
// another own broker. The value is a list of formerOwn, in their order.
const ownPrefix = "own-before:"

// formerOwn is a broker that was a context's own up to a seq: what another one got by then
// has a partner's form, even if that one is the context's own by now.
type formerOwn struct {
	Broker string `json:"broker"`
	UpTo   int64  `json:"up_to"`
}

// OwnRows are the rows of a context's own broker, and of those that were its own before, in
// the time in which they were: each event once, with all that is known of it. It is a
// condition on outbox_messages AS b; which context the rows are of is for others to say.
func OwnRows(ctx context.Context, db bun.IDB, name, broker string) (schema.QueryWithArgs, error) {
	const lane = "b.lane = (SELECT id FROM outbox_lanes WHERE target = ?)"
	before, err := readOwn(ctx, db, name)
	if err != nil || len(before) == 0 {
		return bun.SafeQuery(lane, broker), err
	}
	query, args := "(", []any{}
	for i, was := range before {
		query += lane + " AND b.seq <= ?"
		args = append(args, was.Broker, was.UpTo)
		if i > 0 {
			query += " AND b.seq > ?"
			args = append(args, before[i-1].UpTo)
		}
		query += " OR "
	}
	query += lane + " AND b.seq > ?)"
	return bun.SafeQuery(query, append(args, broker, before[len(before)-1].UpTo)...), nil
}

func readOwn(ctx context.Context, db bun.IDB, name string) (before []formerOwn, err error) {
	value, found, err := readSetting(ctx, db, ownPrefix+name)
	if err != nil || !found {
		return nil, err
	}
	if err := json.Unmarshal([]byte(value), &before); err != nil {
		return nil, fmt.Errorf("outbox: outbox_settings says that %s is %q: write the brokers that were the context's own before, with the last seq of each, as in [{\"broker\": \"default\", \"up_to\": 17}]: %w", ownPrefix+name, value, err)
	}
	return before, nil
}

// writeOwn notes up to where a broker was a context's own. Nobody may write rows meanwhile.
func writeOwn(ctx context.Context, tx bun.Tx, name, was string) error {
	before, err := readOwn(ctx, tx, name)
	if err != nil {
		return err
	}
	last := formerOwn{Broker: was}
	if err := tx.QueryRowContext(ctx, text("both", "change_highest")).Scan(&last.UpTo); err != nil {
		return err
	}
	value, err := json.Marshal(append(before, last))
	if err == nil {
		_, err = tx.ExecContext(ctx, text("both", "setting_write"), ownPrefix+name, string(value))
	}
	return err
}
