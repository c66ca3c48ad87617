// Command first saves a task and hears of it: the smallest program.
package main

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

type Task struct {
	domain.Root
	Title string
}

type TaskAdded struct{ Title string }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	todo := domain.MustNew("todo", domain.Aggregate[*Task]("task", domain.Event[TaskAdded]()))
	units := must(uow.New(uow.Config{Domain: todo, Providers: []uow.Provider{must(sqlite.Open(ctx, sqlite.Config{Path: "todo.db"}))}}))
	must(0, engine.Migrate(ctx, units))

	task := &Task{Root: domain.NewRoot(), Title: "read the guarantees"}
	task.Raise(TaskAdded{task.Title})
	must(0, repository.New[*Task](units).Save(ctx, task)) // the task and its event: one transaction

	printer := subscription.On(func(_ context.Context, e TaskAdded) error { // once per event
		fmt.Println("added:", e.Title)
		stop()
		return nil
	})
	stream := subscription.Stream{Name: "printer", Category: "todo::task", Handlers: []subscription.Handler{printer}}
	eng := must(engine.New(engine.Config{
		Brokers:  map[string]broker.Broker{"default": memory.New(memory.Config{})}, // or kafka.Open, nats.Open
		Contexts: []engine.Context{{Units: units, Subscriptions: []subscription.Stream{stream}}},
	}))
	must(0, eng.Run(ctx)) // publishes and consumes until ctx is done
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
