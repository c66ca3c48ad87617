package timerdb

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/outbox"
)

// Text is the SQL of a step.
func Text(step string) string { return text(step) }

// Finding are the arguments of the step find.
func (s *Store) Finding(f outbox.TimerFilter) (args any, err error) { return s.finding(f) }

// Take is what a promotion would send, if something happened between its look and its
// locks.
func (s *Store) Take(ctx context.Context, limit int, between func()) (ids []string, err error) {
	err = s.inTx(ctx, func(tx bun.Tx) error {
		due, _, err := s.due(ctx, tx, "default", limit, nil)
		if err != nil {
			return err
		}
		between()
		rows, broken, err := s.lock(ctx, tx, due)
		send, _ := inOrder(due, rows, broken)
		for _, r := range send {
			ids = append(ids, r.MessageID)
		}
		return err
	})
	return ids, err
}
