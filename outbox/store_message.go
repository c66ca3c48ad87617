package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// Message returns all rows of one message. If there is none of this id, the error
// is [ErrNoMessage].
func (s *Store) Message(ctx context.Context, messageID string) (*Message, error) {
	if messageID == "" {
		return nil, errors.New("outbox: which message? Its id is empty")
	}
	query, err := s.chosen(Filter{MessageID: messageID}, math.MaxInt64, entryColumns+", payload, status = 'processing' AND "+stale(s.now())+", "+s.now())
	if err != nil {
		return nil, err
	}
	m := &Message{}
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		err := dbrows.Each(ctx, db, "?", func(scan func(...any) error) (err error) {
			var r MessageRow
			var now dbtime.Time
			r.Entry, err = scanEntry(scan, &r.Payload, &r.Stale, &now)
			m.MessageID, m.Now = r.MessageID, now.Time
			m.Rows = append(m.Rows, r)
			return err
		}, query)
		for i := range m.Rows {
			if err == nil && (m.Rows[i].Held || !m.Rows[i].Status.Finished()) {
				err = s.findHead(ctx, db, &m.Rows[i])
			}
			if err == nil && !m.Rows[i].Status.Finished() {
				err = s.findOwner(ctx, db, &m.Rows[i])
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: read message %s: %w", messageID, err)
	}
	if len(m.Rows) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoMessage, messageID)
	}
	return m, nil
}

// findOwner finds who publishes a row's partition.
func (s *Store) findOwner(ctx context.Context, db bun.IDB, r *MessageRow) error {
	return dbrows.Each(ctx, db, "SELECT locked_by, locked_until FROM outbox_partitions WHERE target_broker = ? AND partition = ? AND locked_until > "+s.now(),
		func(scan func(...any) error) error {
			var until dbtime.Time
			err := scan((*text)(&r.Owner), &until)
			r.OwnedUntil = until.Time
			return err
		}, r.TargetBroker, r.Partition)
}

// findHead finds what is before a row in its key.
func (s *Store) findHead(ctx context.Context, db bun.IDB, r *MessageRow) error {
	before := bun.SafeQuery("FROM outbox WHERE target_broker = ? AND partition = ? AND partition_key = ? AND seq < ? AND "+unfinished,
		r.TargetBroker, r.Partition, r.PartitionKey, r.Seq)
	if err := db.QueryRowContext(ctx, "SELECT count(*) ?", before).Scan(&r.Before); err != nil || r.Before == 0 {
		return err
	}
	return dbrows.Each(ctx, db, "SELECT seq, "+entryColumns+" FROM outbox WHERE seq = (SELECT min(seq + 0) ?)", func(scan func(...any) error) error {
		e, err := scanEntry(scan)
		r.Head = &e
		return err
	}, before)
}
