package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// Message returns all rows of one message. If there is none of this id, the error
// is [outbox.ErrNoMessage].
func (s *Store) Message(ctx context.Context, messageID string) (*outbox.Message, error) {
	if messageID == "" {
		return nil, errors.New("outbox: which message? Its id is empty")
	}
	columns := entryColumns + ", o.payload, COALESCE(o.status = 'processing' AND o.locked_until <= " + s.now() + ", FALSE), " + s.now()
	query, args, err := s.chosen(outbox.Filter{MessageID: messageID}, math.MaxInt64, math.MaxInt32, columns)
	if err != nil {
		return nil, err
	}
	m := &outbox.Message{}
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		err := dbrows.Each(ctx, db, query, func(scan func(...any) error) (err error) {
			var r outbox.MessageRow
			var now dbtime.Time
			r.Entry, err = scanEntry(scan, &r.Payload, &r.Stale, &now)
			m.MessageID, m.Now = r.MessageID, now.Time
			m.Rows = append(m.Rows, r)
			return err
		}, args)
		for i := range m.Rows {
			if err == nil {
				err = s.findSurroundings(ctx, db, &m.Rows[i])
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: read message %s: %w", messageID, err)
	}
	if len(m.Rows) == 0 {
		return nil, fmt.Errorf("%w: %s", outbox.ErrNoMessage, messageID)
	}
	return m, nil
}

// findSurroundings finds what an undelivered row waits for: what is before it in
// its key, and who publishes its partition.
func (s *Store) findSurroundings(ctx context.Context, db bun.IDB, r *outbox.MessageRow) error {
	if r.Status.Finished() && !r.Held {
		return nil
	}
	var head nullNumber
	if err := db.QueryRowContext(ctx, s.text("message_before"), r.Seq).Scan(&r.Before, &head); err != nil {
		return err
	}
	if r.Before > 0 {
		query, args, err := s.chosen(outbox.Filter{Seqs: []int64{int64(head)}}, math.MaxInt64, 1, entryColumns)
		if err != nil {
			return err
		}
		err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
			e, err := scanEntry(scan)
			r.Head = &e
			return err
		}, args)
		if err != nil {
			return err
		}
	}
	if r.Status.Finished() {
		return nil
	}
	return dbrows.Each(ctx, db, s.text("message_owner"), func(scan func(...any) error) error {
		var until dbtime.Time
		err := scan(&r.Owner, &until)
		r.OwnedUntil = until.Time
		return err
	}, r.Seq, bun.Safe(s.now()))
}
