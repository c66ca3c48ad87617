package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// nothing is a job that does nothing.
type nothing struct {
	N int `json:"n"`
}

func (nothing) Kind() string { return "nothing" }

type idle struct {
	river.WorkerDefaults[nothing]
}

func (idle) Work(context.Context, *river.Job[nothing]) error { return nil }

// river is jobs per second of a queue in the same database, which does nothing
// with each: it claims and completes, and publishes nowhere.
func (d drainage) river(ctx context.Context, w *world) (_ map[string]float64, err error) {
	if err := w.empty(ctx); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 20 // as Waybill's
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, idle{})
	client, err := river.NewClient(driver, &river.Config{
		// As its own benchmark has them.
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers: workers, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return nil, err
	}
	jobs := make([]river.InsertManyParams, d.events)
	for i := range jobs {
		jobs[i].Args = nothing{N: i}
	}
	if _, err := client.InsertManyFast(ctx, jobs); err != nil {
		return nil, err
	}
	for _, statement := range []string{"VACUUM (ANALYZE) river_job", "CHECKPOINT"} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	completed, cancel := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: d.events, Kinds: []river.EventKind{river.EventKindJobCompleted}})
	defer cancel()
	begin := time.Now()
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	over := time.NewTimer(peerTime)
	defer over.Stop()
	n := 0
	for late := false; n < d.events && !late; {
		select {
		case <-completed:
			n++
		case <-over.C:
			late = true
		}
	}
	took := time.Since(begin)
	var stored int
	err = errors.Join(client.Stop(context.WithoutCancel(ctx)),
		pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE state = 'completed'").Scan(&stored))
	if err == nil && (stored < n || n == d.events && stored != n) {
		err = fmt.Errorf("%d jobs of %d were completed, and %d are stored so", n, d.events, stored)
	}
	return map[string]float64{"rate": float64(n) / took.Seconds()}, err
}
