package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// office is a context that has commands and timers besides.
var office = domain.MustNew("office",
	domain.Aggregate[*Paper]("paper", domain.Event[PaperFiled]()),
	domain.Command[ShredPaper](domain.KeyedBy("id")),
)

// ShredPaper is a command of about 500 bytes.
type ShredPaper struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// archive is a context with a process that hears of the papers of desk.
var archive = domain.MustNew("archive",
	domain.Foreign[PaperFiled]("Desk.PaperFiled.v1", domain.From(category)),
	domain.Process[*Folder]("folder", domain.Starts((*Folder).File, domain.By(func(e PaperFiled) string { return e.Text[:folderID] }))),
)

// folderID is how many hexadecimal digits of a paper's text say which folder it is for.
const folderID = 3

// Folder counts papers.
type Folder struct {
	domain.ProcessRoot
	Papers int
}

// File hears of a paper.
func (f *Folder) File(PaperFiled) error {
	f.Papers++
	return nil
}

// officeWriters write side by side.
const officeWriters = 8

// asOffice has w be that of office until end is called. No timer waits then.
func (w *world) asOffice(ctx context.Context) (end func(), err error) {
	units, err := uow.New(uow.Config{Domain: office, Providers: []uow.Provider{w.provider}})
	if err != nil {
		return nil, err
	}
	handlers, err := command.New(command.Config{Units: units, Handlers: []command.Handler{
		command.On(func(context.Context, ShredPaper) error { return nil }),
	}})
	if err != nil {
		return nil, err
	}
	if err := engine.Migrate(ctx, units); err != nil {
		return nil, err
	}
	if err := w.each(ctx, "TRUNCATE timers"); err != nil {
		return nil, err
	}
	was := *w
	w.units, w.commands, w.papers = units, handlers, repository.New[*Paper](units)
	return func() { w.units, w.commands, w.papers = was.units, was.commands, was.papers }, nil
}

// inOffice is work in a world of office, with so many timers that wait.
func inOffice(timers int, do work) work {
	return func(ctx context.Context, w *world) (_ map[string]float64, err error) {
		end, err := w.asOffice(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		if err := w.wait(ctx, timers); err != nil {
			return nil, err
		}
		got, err := do(ctx, w)
		if err == nil {
			err = w.timers(ctx, timers)
		}
		return got, err
	}
}

// wait sets one timer, and makes the others as copies of it.
func (w *world) wait(ctx context.Context, timers int) error {
	if timers == 0 {
		return nil
	}
	if err := w.schedule(ctx, "shred"); err != nil {
		return err
	}
	_, err := w.sql.Exec(ctx, `INSERT INTO timers (id, owner, name, available_at, key, message, payload)
		SELECT gen_random_uuid(), owner, name || n, available_at + n * interval '1 millisecond', key + n, message, payload FROM timers, generate_series(2, $1::int) AS n`, timers)
	if err != nil {
		return err
	}
	return w.tidy(ctx, "timers")
}

// timers says whether so many wait.
func (w *world) timers(ctx context.Context, want int) error {
	var got int
	err := w.sql.QueryRow(ctx, "SELECT count(*) FROM timers WHERE status = 'waiting'").Scan(&got)
	if err == nil && got != want {
		err = fmt.Errorf("%d timers wait, and not %d", got, want)
	}
	return err
}

func (w *world) schedule(ctx context.Context, name string) error {
	return w.units.Do(ctx, func(ctx context.Context) error {
		return command.Schedule(ctx, name, time.Now().Add(24*time.Hour), ShredPaper{ID: name, Text: text()})
	})
}

// setAndStop is timers per second, each set by a unit of work and stopped by another.
func setAndStop(lasts time.Duration) work {
	return inOffice(0, func(ctx context.Context, w *world) (map[string]float64, error) {
		_, rate, err := w.rate(ctx, side(func() error {
			name := uuid.NewString()
			if err := w.schedule(ctx, name); err != nil {
				return err
			}
			return w.units.Do(ctx, func(ctx context.Context) error { return command.Unschedule(ctx, name) })
		}), lasts)
		return rate, err
	})
}

// send is commands per second, each put into the outbox by a unit of work of its own.
func send(lasts time.Duration) work {
	return inOffice(0, func(ctx context.Context, w *world) (map[string]float64, error) {
		units, rate, err := w.rate(ctx, side(func() error {
			return w.units.Do(ctx, func(ctx context.Context) error {
				return command.Send(ctx, ShredPaper{ID: uuid.NewString(), Text: text()})
			})
		}), lasts)
		if err != nil {
			return nil, err
		}
		var rows int64
		err = w.sql.QueryRow(ctx, "SELECT count(*) FROM outbox WHERE stream_category = 'office::commands'").Scan(&rows)
		if err == nil && rows != units {
			err = fmt.Errorf("%d commands left %d rows", units, rows)
		}
		return rate, err
	})
}

// side has officeWriters do it side by side.
func side(unit func() error) []func() error {
	return slices.Repeat([]func() error{unit}, officeWriters)
}

// step is messages per second that processes hear, each in a transaction of its own.
func step(ctx context.Context, w *world) (map[string]float64, error) {
	units, err := uow.New(uow.Config{Domain: archive, Providers: []uow.Provider{w.provider}})
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(w.out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	all, err := process.New(units, []process.Config{{Name: "folder", Queue: subscription.Stream{Lanes: consumeLanes}}}, logger)
	if err != nil {
		return nil, err
	}
	if err := engine.Migrate(ctx, units); err != nil {
		return nil, err
	}
	b, end, err := w.broker(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := w.produce(ctx); err != nil {
		return nil, err
	}
	if err := w.each(ctx, "TRUNCATE processes"); err != nil {
		return nil, err
	}
	r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: all.Streams()[0], Broker: b, Logger: logger})
	if err != nil {
		return nil, err
	}
	rate, err := w.consuming(ctx, func() error { return r.Start(ctx) })
	if err := errors.Join(err, r.Stop(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	var heard int64
	if err := w.sql.QueryRow(ctx, "SELECT sum(version) FROM processes").Scan(&heard); err != nil {
		return nil, err
	}
	if heard != int64(w.consumed) {
		return nil, fmt.Errorf("of %d messages processes have heard %d", w.consumed, heard)
	}
	return rate, nil
}
