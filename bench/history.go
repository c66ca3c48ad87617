package main

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// keptMetrics are units per second, and what each takes: bytes of the database's log,
// and room in the tables and their indexes.
var keptMetrics = []string{"rate", "log", "room"}

// saveKept is save of eight writers with the history on or off.
func saveKept(history bool, lasts time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		units, err := uow.New(uow.Config{Domain: desk, Providers: []uow.Provider{w.provider}, History: history})
		if err != nil {
			return nil, err
		}
		// Whether a history is kept is a state of the database, which begins with empty tables at once.
		if err := w.each(ctx, "TRUNCATE history", "DELETE FROM outbox_settings WHERE name = 'targets:"+desk.Name()+"'"); err != nil {
			return nil, err
		}
		if err := w.empty(ctx); err != nil {
			return nil, err
		}
		if err := engine.Migrate(ctx, units); err != nil {
			return nil, err
		}
		was := w.papers
		w.papers = repository.New[*Paper](units)
		defer func() { w.papers = was }()
		const room = "SELECT pg_total_relation_size('documents') + pg_total_relation_size('outbox_messages') + pg_total_relation_size('outbox_queue') + pg_total_relation_size('history')"
		var before, after, kept, saves int64
		if err := w.sql.QueryRow(ctx, room).Scan(&before); err != nil {
			return nil, err
		}
		var rate float64
		log, err := w.walOf(ctx, func() (err error) {
			saves, rate, err = flatOut(ctx, w.writers(ctx, officeWriters), lasts)
			return err
		})
		if err != nil {
			return nil, err
		}
		if err := w.sql.QueryRow(ctx, room+", (SELECT count(*) FROM history)").Scan(&after, &kept); err != nil {
			return nil, err
		}
		if want := map[bool]int64{true: saves}[history]; kept != want {
			return nil, fmt.Errorf("%d saves left %d events in the history, and not %d", saves, kept, want)
		}
		n := float64(saves)
		return map[string]float64{"rate": rate, "log": (log.bytes - log.images) / n, "room": float64(after-before) / n}, w.stored(ctx, "outbox", saves)
	}
}
