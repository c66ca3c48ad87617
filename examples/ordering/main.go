// Command ordering is Waybill's example: three bounded contexts, ordering, shipping and
// billing, a process between them, and a partner who listens from outside.
//
//	go run ./examples/ordering
//
// needs nothing installed. It places orders into a SQLite file, publishes their
// events through an embedded NATS server, has them paid for and ships them, or cancels
// them and gives the money back, and closes the books. With
// a configuration file it is a service on the databases and brokers that the
// file names:
//
//	ordering --config waybill.yaml migrate
//	ordering --config waybill.yaml serve --calls 4 --pay-within 1h
//	ordering --config waybill.yaml place --file orders.csv
//	ordering --config waybill.yaml verify --wait 90s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Orders, shipments, payments and a partner: Waybill's example.

Everything in one process, with nothing installed:
  ordering [--dir DIR] [--orders N] [--json]

Against the databases and brokers of a configuration file:
  ordering [--config FILE] migrate
  ordering [--config FILE] serve [--calls N] [--pay-within DURATION]
  ordering [--config FILE] place [--orders N] [--customers K] [options]
  ordering [--config FILE] place --file ORDERS.csv [--part I/N] [options]
  ordering [--config FILE] verify [--wait DURATION]

Options of place:
  --orders N           how many; -1: without end (500)
  --customers K        of how many customers (100)
  --file ORDERS.csv    customer,date,quantity,amount_cents; an order per line,
                       with the id <file name>-<line>, the header being line 1
  --part I/N           only the customers of part I of N
  --rate R             orders per second (as many as possible)
  --cancel-percent C   how many of them to cancel again (0)
  --writers W          how many write at the same time (4)

Options of serve:
  --calls N            of a broker that may be out at once (what the file says)
  --pay-within D       charge for orders, and ship them when they are paid for; those
                       that are not paid for within D are cancelled (nobody charges)

--config is waybill.yaml if left out.
`

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without its process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var wrong *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "ordering: %v\nRun `ordering --help` for what it can do.\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "ordering: %v\n", err)
	return exitFailed
}

// program is what all commands share.
type program struct {
	config         string
	stdout, stderr io.Writer
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	p := program{stdout: stdout, stderr: stderr}
	var d demo
	flags := newFlags()
	flags.StringVar(&p.config, "config", "waybill.yaml", "")
	flags.StringVar(&d.dir, "dir", "waybill-data", "")
	flags.IntVar(&d.size, "orders", defaultOrders, "")
	flags.BoolVar(&d.json, "json", false, "")
	if err := flags.Parse(args); err != nil {
		return parseError(err)
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })

	log := func(level slog.Level) {
		slog.SetDefault(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})))
	}
	if flags.NArg() == 0 {
		switch {
		case given["config"]:
			return usagef("--config goes with one of migrate, serve, place and verify")
		case d.size < 0:
			return usagef("--orders is %d: 0 or more", d.size)
		}
		log(slog.LevelWarn)
		return d.run(ctx, stdout, stderr)
	}
	for _, name := range []string{"dir", "orders", "json"} {
		if given[name] {
			return usagef("--%s before a command is not for it: leave it out", name)
		}
	}
	commands := map[string]func(program, context.Context, []string) error{
		"migrate": program.migrate, "serve": program.serve, "place": program.place, "verify": program.verify,
	}
	command, ok := commands[flags.Arg(0)]
	if !ok {
		return usagef("there is no command %q: migrate, serve, place or verify", flags.Arg(0))
	}
	log(slog.LevelInfo)
	return command(p, ctx, flags.Args()[1:])
}

// usageError is a command line that is wrong.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

func newFlags() *flag.FlagSet {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run says what is wrong
	return flags
}

// parse reads the flags of a command, which takes no other arguments.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return parseError(err)
	}
	if flags.NArg() > 0 {
		return usagef("%q is not a flag: nothing else is understood here", flags.Arg(0))
	}
	return nil
}

func parseError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return &usageError{err}
}
