package outboxdb

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/outbox"
)

// Actions returns what operators did, the last first, at most limit.
func (s *Store) Actions(ctx context.Context, limit int) ([]outbox.Action, error) {
	actions := []outbox.Action{}
	err := dbrows.Each(ctx, s.reader, s.text("actions"),
		func(scan func(...any) error) error {
			var a outbox.Action
			var at dbtime.Time
			var filter []byte
			err := scan(&a.ID, &at, &a.Actor, &a.Action, &filter, &a.Rows)
			a.At, a.Filter = at.Time, filter
			actions = append(actions, a)
			return err
		}, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("outbox: read outbox_actions: %w", err)
	}
	return actions, nil
}

// actionRecord is what outbox_actions says of an action.
func actionRecord(actor, action string, asked any) operate.Record {
	return operate.Record{Table: "outbox_actions", Count: "rows", Actor: actor, Action: action, Asked: asked}
}
