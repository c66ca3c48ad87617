package outboxdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbfile"
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
// promoted says so.
func (s *Store) CheckIdentity(ctx context.Context, on outbox.OnFailover) (promoted bool, err error) {
	recorded, present, err := s.Identity(ctx)
	if err != nil || present == (outbox.Identity{}) {
		return false, err
	}
	switch {
	case recorded == (outbox.Identity{}):
		_, err = s.db.ExecContext(ctx, s.text("setting_init"), identitySetting, asText(present))
	case present.Moved(recorded) == "":
	case on == outbox.Continue && present.PromotedFrom(recorded):
		promoted = true
		_, err = s.db.ExecContext(ctx, s.text("setting_write"), identitySetting, asText(present))
	default:
		return false, &outbox.MovedError{Recorded: recorded, Present: present}
	}
	if err != nil {
		return false, fmt.Errorf("outbox: note the identity of the database: %w", err)
	}
	return promoted, nil
}

// Identity reads what is recorded, and what the database is. Neither is known of one that
// doesn't tell, and the latter isn't of a standby.
func (s *Store) Identity(ctx context.Context) (recorded, present outbox.Identity, err error) {
	recorded, present, err = s.identity(ctx, s.reader)
	if err != nil {
		err = fmt.Errorf("outbox: read the identity of the database: %w", err)
	}
	return recorded, present, err
}

func (s *Store) identity(ctx context.Context, db bun.IDB) (recorded, present outbox.Identity, err error) {
	if s.untold.Load() {
		return recorded, present, nil
	}
	var was, system, timeline, database, file sql.NullString
	err = db.QueryRowContext(ctx, s.text("identity"), identitySetting).Scan(&was, &system, &timeline, &database, &file)
	switch {
	case untold(err):
		s.untold.Store(true)
		return recorded, present, nil
	case err != nil:
		return recorded, present, err
	case was.Valid && json.Unmarshal([]byte(was.String), &recorded) != nil:
		recorded = outbox.Identity{System: unreadable, File: unreadable}
	}
	present = outbox.Identity{System: system.String, Timeline: timeline.String, Database: database.String, File: dbfile.Number(file.String)}
	if !s.sqlite() && !timeline.Valid {
		return recorded, outbox.Identity{}, nil // a standby: nobody publishes there
	}
	return recorded, present, nil
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
	err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
		recorded, present, err := s.identity(ctx, tx)
		if err == nil && present == (outbox.Identity{}) {
			err = errors.New("the server doesn't tell who it is, or is a standby: there is nothing to accept")
		}
		if moved = present.Moved(recorded); moved == "" || err != nil {
			return err
		}
		record.Asked = map[string]any{"recorded": recorded, "present": present}
		if _, err := tx.ExecContext(ctx, s.text("setting_write"), identitySetting, asText(present)); err != nil {
			return err
		}
		_, err = record.Add(ctx, tx, 0, 0, 1)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("outbox: accept the database: %w", err)
	}
	return moved, nil
}

func asText(i outbox.Identity) string {
	text, _ := json.Marshal(i) //nolint:errchkjson // strings only
	return string(text)
}
