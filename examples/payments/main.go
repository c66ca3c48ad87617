// Command payments debits credit cards, once for each payment, without a
// relational database: cards are documents in NATS key-value.
//
//	go run ./examples/payments
//
// needs nothing installed. It runs a NATS server, sends each payment one to three
// times, and starts workers, processes that are killed over and over, by
// themselves in the middle of a payment and from outside at any moment. At the end
// it closes the books: exit status 0 says that each card was debited once for each
// payment, and that each confirmation has one id and one body.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/waybill-go/waybill/broker/nats"
)

const usage = `Credit cards that are debited once, whoever dies: Waybill without a relational database.

  payments [--payments N] [--cards C] [--workers W] [--kills K] [--dir DIR]

  --payments N   how many, each sent one to three times (1000)
  --cards C      of how many cards (50)
  --workers W    processes at work (4)
  --kills K      how many workers are killed from outside, besides those that
                 kill themselves in the middle of a payment (20)
  --dir DIR      where the server keeps its data (a directory that is removed)
`

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
	exitWorker = 3 // It wasn't killed.
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without its process. "work URL KEYFILE" is how it starts its workers.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 3 && args[0] == "work" {
		fmt.Fprintf(stderr, "payments: worker: %v\n", work(ctx, nats.Config{URL: args[1], NKey: args[2]}))
		return exitWorker
	}
	var o options
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&o.payments, "payments", 1000, "")
	flags.IntVar(&o.cards, "cards", 50, "")
	flags.IntVar(&o.workers, "workers", 4, "")
	flags.IntVar(&o.kills, "kills", 20, "")
	flags.StringVar(&o.dir, "dir", "", "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "payments: %v\n\n%s", err, usage)
		return exitUsage
	case flags.NArg() > 0, o.payments < 1, o.cards < 1, o.workers < 1, o.kills < 0:
		fmt.Fprintf(stderr, "payments: payments, cards and workers are 1 or more, kills 0 or more, and there is nothing else\n\n%s", usage)
		return exitUsage
	}
	if err := demo(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "payments: %v\n", err)
		return exitFailed
	}
	return 0
}
