// Command shop is an application on Waybill: ordering, billing and shipping as three
// contexts with a process between them, an HTTP API, and a page that a projection feeds.
//
//	go run ./examples/shop
//
// needs nothing installed: its data is in ./shop-data, and so is the configuration file that
// it makes there. On PostgreSQL and Kafka:
//
//	go run ./examples/shop --config examples/shop/servers.yaml
//
// The README beside it says what to look at.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/examples/shop/billing"
	"github.com/waybill-go/waybill/examples/shop/ordering"
	"github.com/waybill-go/waybill/examples/shop/shipping"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

//go:embed local.yaml
var local []byte

var kinds = config.Kinds{
	Providers: map[string]config.OpenProvider{"postgres": postgres.NewServers().FromSettings, "sqlite": sqlite.FromSettings},
	Brokers:   map[string]broker.Opener{"kafka": kafka.FromSettings, "nats": embedded.FromSettings},
}

func main() {
	file := flag.String("config", "", "configuration `file`; without one, shop-data/waybill.yaml is made and used")
	addr := flag.String("addr", "127.0.0.1:8080", "where the shop answers, as `host:port`")
	payWithin := flag.Duration("pay-within", 2*time.Minute, "how long customers have to pay")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *file, *addr, *payWithin, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done.
func run(ctx context.Context, file, addr string, payWithin time.Duration, out io.Writer) (err error) {
	if file == "" {
		file = filepath.Join("shop-data", "waybill.yaml")
		if err := errors.Join(os.MkdirAll("shop-data", 0o700), os.WriteFile(file, local, 0o600)); err != nil {
			return err
		}
	}
	s, err := config.Load(ctx, file, ordering.Domain, kinds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	bills, err1 := s.UnitsFor(billing.Domain)
	parcels, err2 := s.UnitsFor(shipping.Domain)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := engine.Migrate(ctx, s.Units, bills, parcels); err != nil {
		return err
	}
	app := shop{ordering.New(s.Units, payWithin), billing.New(bills), shipping.New(parcels)}
	s.Engine.Contexts = app.contexts()
	s.Engine.App = engine.App{Addr: addr, Handler: app.routes()}
	eng, err := engine.New(s.Engine)
	if err == nil {
		err = eng.Start(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the shop: http://%s   the observatory: http://%s\n", eng.AppAddr(), eng.Addr())
	return eng.Run(ctx)
}
