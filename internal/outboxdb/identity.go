package outboxdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbfile"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/outbox"
)

// identitySetting is what outbox_settings calls the database's identity. A dump, a copy
// and a standby have it too, and by that they show that they are others.
const (
	identitySetting = "identity"
	unreadable      = "unreadable" // what somebody wrote over it
)

// CheckIdentity returns an [*outbox.MovedError] if the database isn't the one that its
// outbox was written in. One that has no identity yet gets it. What a server doesn't tell
// isn't compared.
//
// Under [outbox.Continue] a promoted standby is the same database: that is noted, and
// promoted says so. is tells databases apart; "": it isn't known.
func (s *Store) CheckIdentity(ctx context.Context, on outbox.OnFailover) (is string, promoted bool, err error) {
	recorded, present, err := s.Identity(ctx)
	if err != nil || present == (outbox.Identity{}) {
		return "", false, err
	}
	is = asText(present)
	switch {
	case recorded == (outbox.Identity{}):
		_, err = s.db.ExecContext(ctx, s.text("setting_init"), identitySetting, asText(present))
	case present.Moved(recorded) == "":
		if recorded.Made == "" && present.Made != "" { // an earlier build didn't record it
			_, err = s.db.ExecContext(ctx, s.text("setting_write"), identitySetting, asText(present))
		}
	case on == outbox.Continue && present.PromotedFrom(recorded):
		promoted = true
		_, err = s.db.ExecContext(ctx, s.text("setting_write"), identitySetting, asText(present))
	default:
		return is, false, &outbox.MovedError{Recorded: recorded, Present: present}
	}
	if err != nil {
		return is, false, fmt.Errorf("outbox: note the identity of the database: %w", err)
	}
	return is, promoted, nil
}

var identityStep = rarely("identity")

// Identity reads what is recorded, and what the database is. Neither is known of one that
// doesn't tell, and the latter isn't of a standby. It doesn't wait until units of work give a
// connection back, as a renewal waits for it.
func (s *Store) Identity(ctx context.Context) (recorded, present outbox.Identity, err error) {
	if s.untold.Load() {
		return recorded, present, nil
	}
	how := keeps
	if s.sqlite() {
		how = reads // beside whoever writes
	}
	err = s.do(ctx, how, identityStep, statement{values: []any{identitySetting}, row: func(r result) error {
		if !r.null(0) && json.Unmarshal([]byte(r.text(0)), &recorded) != nil {
			recorded = outbox.Identity{System: unreadable, File: unreadable}
		}
		if s.sqlite() || !r.null(2) { // otherwise a standby, on which nobody publishes
			present = outbox.Identity{System: r.text(1), Timeline: r.text(2), Database: r.text(3)}
			if s.sqlite() {
				present.File, present.Made = dbfile.Number(r.text(4)), dbfile.Made(r.text(4))
			}
		}
		return nil
	}})
	if dberr.CodeOf(err) == dberr.Denied { // the functions, or the settings, which whoever works has a right to
		if _, lacks := readNoted(ctx, s.db, identitySetting); lacks != nil {
			return outbox.Identity{}, outbox.Identity{}, fmt.Errorf("outbox: read the identity of the database: %w", lacks)
		}
	}
	if untold(err) {
		s.untold.Store(true)
		return outbox.Identity{}, outbox.Identity{}, nil
	}
	return recorded, present, err
}

// untold says that the server doesn't tell who it is: a service that has no such functions,
// or lets nobody use them. PostgreSQL's own lets everybody.
func untold(err error) bool {
	code := dberr.CodeOf(err)
	return code == dberr.Denied || code == "42883" || strings.HasPrefix(code, "0A")
}

// AcceptIdentity makes the database the one that its outbox is published from, on record.
// moved says what differed; "": nothing did, and nothing was changed.
func (s *Store) AcceptIdentity(ctx context.Context, actor string) (moved string, err error) {
	record := actionRecord(actor, "database-accept", nil)
	if err := record.Check("outbox: accept the database", false); err != nil {
		return "", err
	}
	recorded, present, err := s.Identity(ctx)
	if err == nil && present == (outbox.Identity{}) {
		err = errors.New("outbox: the server doesn't tell who it is, or is a standby: there is nothing to accept")
	}
	if moved = present.Moved(recorded); moved == "" || err != nil {
		return "", err
	}
	record.Asked = map[string]any{"recorded": recorded, "present": present}
	run := &operate.Run{DB: s.db, What: "outbox: accept the database", Done: "databases accepted", LockWait: changePatience, GoOn: "run it again", Record: record}
	err = run.Step(ctx, func(tx bun.Tx) (int64, error) {
		result, err := tx.ExecContext(ctx, s.text("setting_write"), identitySetting, asText(present))
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	})
	if err != nil || run.Changed == 0 { // Another operator has accepted it meanwhile.
		return "", err
	}
	return moved, nil
}

func asText[I outbox.Identity | outbox.BrokerIdentity](i I) string {
	text, _ := json.Marshal(i) //nolint:errchkjson // strings only
	return string(text)
}
