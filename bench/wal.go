package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/outbox"
)

const (
	walWriters = 8
	walRate    = 200 // units per second, live
	walTime    = 5 * time.Second
)

// walMetrics are bytes of PostgreSQL's log for each event. All of them: from insert
// to published, of a backlog, right after a checkpoint. Of these insert, publication,
// and what page images are: the first change of a page after a checkpoint logs the
// whole page. Live: the same while few events come at a time, and what of it page
// images are.
var walMetrics = []string{"all", "insert", "publish", "page images", "live", "live page images"}

// walOf is what Waybill writes to the log.
func walOf(events int) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		b, end, err := w.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		got, err := w.logged(ctx, events, w.writers(ctx, walWriters), func(ctx context.Context) error {
			return w.running(ctx, b, outbox.Config{}, func(ctx context.Context) error { return w.drained(ctx, events) })
		})
		if err != nil {
			return nil, err
		}
		var units int
		live, err := w.walOf(ctx, func() error {
			return w.running(ctx, b, outbox.Config{}, func(ctx context.Context) (err error) {
				unit := func(ctx context.Context) error { return w.papers.Save(ctx, newPaper()) }
				units, _, err = atRate(ctx, walRate, latencyWriters, unit, func(ctx context.Context) error {
					pause(ctx, walTime)
					return ctx.Err()
				})
				return errors.Join(err, w.drained(ctx, events+units))
			})
		})
		if err != nil {
			return nil, err
		}
		got["live"], got["live page images"] = live.bytes/float64(units), live.images/float64(units)
		return got, w.delivered(ctx, events+units, false)
	}
}

// walByHand is what the limit does.
func walByHand(events int) func(*tables) work {
	return func(t *tables) work {
		return func(ctx context.Context, w *world) (map[string]float64, error) {
			if err := w.anew(ctx); err != nil {
				return nil, err
			}
			writers, end, err := w.hands(ctx, t, walWriters, func(string) {})
			if err != nil {
				return nil, err
			}
			defer end()
			got, err := w.logged(ctx, events, writers, func(ctx context.Context) error {
				return drainage{}.relays(ctx, w, t)
			})
			if err != nil {
				return nil, err
			}
			return got, errors.Join(t.finished(ctx, w, events), w.delivered(ctx, events, false))
		}
	}
}

// logged lets writers store so many events, and then publish.
func (w *world) logged(ctx context.Context, events int, writers []func() error, publish func(context.Context) error) (map[string]float64, error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	insert, err := w.walOf(ctx, func() error { return times(events, writers) })
	if err != nil {
		return nil, err
	}
	published, err := w.walOf(ctx, func() error { return publish(ctx) })
	if err != nil {
		return nil, err
	}
	n := float64(events)
	return map[string]float64{
		"all": (insert.bytes + published.bytes) / n, "insert": insert.bytes / n, "publish": published.bytes / n,
		"page images": (insert.images + published.images) / n,
	}, nil
}

// times lets writers share so many units.
func times(n int, writers []func() error) error {
	var taken atomic.Int64
	errs := make([]error, len(writers))
	var working sync.WaitGroup
	for i, unit := range writers {
		working.Go(func() {
			for errs[i] == nil && taken.Add(1) <= int64(n) {
				errs[i] = unit()
			}
		})
	}
	working.Wait()
	return errors.Join(errs...)
}

// walUse is what was logged; images are part of bytes.
type walUse struct{ bytes, images float64 }

// ofThisDatabase are the log's records about pages of the database, but for those of
// documents, and the ends of transactions that wrote such. Others use the server, too.
const ofThisDatabase = `WITH records AS MATERIALIZED (
		SELECT xid, resource_manager, record_length, fpi_length, block_ref FROM pg_get_wal_records_info($1, $2)),
	documents AS (
		SELECT string_agg(pg_relation_filenode(c.oid)::text, '|') AS files FROM pg_class AS c
		WHERE c.oid = 'documents'::regclass OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'documents'::regclass)
			OR c.oid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'documents'::regclass)),
	own AS (
		SELECT records.* FROM records, documents, pg_database AS d WHERE d.datname = current_database()
			AND block_ref ~ ('rel [0-9]+/' || d.oid || '/') AND block_ref !~ ('rel [0-9]+/' || d.oid || '/(' || files || ') ')),
	ends AS (SELECT * FROM records WHERE resource_manager = 'Transaction' AND xid IN (SELECT xid FROM own))
	SELECT coalesce(sum(record_length), 0)::float8, coalesce(sum(fpi_length), 0)::float8 FROM (SELECT * FROM own UNION ALL SELECT * FROM ends) AS mine`

// walOf is what do makes the server log in this database, after a checkpoint. The
// server keeps its log meanwhile, by a slot that ends with its session.
func (w *world) walOf(ctx context.Context, do func() error) (use walUse, err error) {
	if err := w.each(ctx, "CREATE EXTENSION IF NOT EXISTS pg_walinspect", "CHECKPOINT"); err != nil {
		return use, err
	}
	c, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return use, err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	if _, err := c.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true, true)", w.name); err != nil {
		return use, err
	}
	var from, to string
	if err := c.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&from); err != nil {
		return use, err
	}
	if err := do(); err != nil {
		return use, err
	}
	// What is logged so far is to be read: a flushed commit.
	if _, err := c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'bench', '')"); err != nil {
		return use, err
	}
	if err := c.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&to); err != nil {
		return use, err
	}
	err = c.QueryRow(ctx, ofThisDatabase, from, to).Scan(&use.bytes, &use.images)
	if err != nil {
		err = fmt.Errorf("read the log from %s to %s: %w", from, to, err)
	}
	return use, err
}
