// Command waybill is the operator's tool for Waybill's tables.
//
//	waybill --config waybill.yaml migrate
//	waybill --dsn postgres://user@127.0.0.1:5432/ordering outbox stats
//
// Its exit status is 0 if all is fine, 1 if something failed, and 2 if it was
// called wrongly. What was asked for goes to standard output, everything else to
// standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// cli is the command line.
type cli struct {
	Config string `placeholder:"FILE" help:"Read the databases from this configuration file. Defaults to waybill.yaml, if there is one."`
	DSN    string `name:"dsn" placeholder:"DSN" help:"Use one database: a PostgreSQL URL, or the path of a SQLite file."`
	JSON   bool   `name:"json" help:"Write JSON."`

	Migrate migrateCmd `cmd:"" help:"Create or update Waybill's tables. Safe to repeat, and while services run."`
	Outbox  struct {
		Stats    statsCmd       `cmd:"" help:"Show, for every target broker, what waits, what failed, and who publishes it."`
		List     listRowsCmd    `cmd:"" help:"List rows, those that are not published if nothing else is said, in the order in which they were stored."`
		Show     showRowCmd     `cmd:"" help:"Show a message: where it goes, how far it has come, what it waits for and why."`
		Retry    retryRowsCmd   `cmd:"" help:"Try failed and abandoned rows again, at once or at a rate."`
		Skip     skipRowsCmd    `cmd:"" help:"Let go on what waits behind held rows of their keys. The rows stay abandoned."`
		Abandon  abandonRowsCmd `cmd:"" help:"Give up pending and failed rows. What is behind them in their keys goes on."`
		Purge    purgeCmd       `cmd:"" help:"Remove rows that have expired, or that were published or abandoned long enough ago. Never one that is held or not delivered."`
		Log      rowsLogCmd     `cmd:"" help:"Show who retried, skipped, abandoned and removed what, the last first."`
		Backfill backfillCmd    `cmd:"" help:"Copy the events of the time before for an external broker that is joining, and let it live. Safe to end and to repeat, and while services run."`
	} `cmd:"" help:"Look into the outbox, and change what becomes of its rows."`
	Timers struct {
		List listTimersCmd `cmd:"" help:"List timers, by when they are due."`
		Show showTimerCmd  `cmd:"" help:"Show one timer: whose it is, when it is due, and its message."`
		Move moveTimersCmd `cmd:"" help:"Let timers that wait become due at another time. Those that are sent are left."`
		Fire fireTimersCmd `cmd:"" help:"Let timers that wait become due at once."`
		Stop stopTimersCmd `cmd:"" help:"Stop timers for good, also those whose message is on its way: it has no effect any more."`
	} `cmd:"" help:"Look after messages that wait for their time. Who moved and stopped what, waybill outbox log has."`
	Processes struct {
		List  listProcessesCmd  `cmd:"" help:"List processes, the oldest first."`
		Show  showProcessCmd    `cmd:"" help:"Show one process: its state, what it last heard, its timers and its dead letters."`
		Stats processesStatsCmd `cmd:"" help:"Count processes by kind: those that run, are awaited, have ended, and are idle, as they have heard nothing for 30 days and have no timer."`
		End   endProcessesCmd   `cmd:"" help:"End running processes and stop their timers: what comes for them is ignored. Nothing is compensated."`
		Wake  wakeProcessCmd    `cmd:"" help:"Have a timer of a process ring now."`
	} `cmd:"" help:"Look after processes, which hear events and send commands. Who ended what, waybill outbox log has."`
	Projections struct {
		List    listProjectionsCmd   `cmd:"" help:"List builds of projections: which is in use, how far each has come, and why one stands still."`
		Rebuild rebuildProjectionCmd `cmd:"" help:"Have the engines build the version in use anew, beside it, and change over."`
		Switch  switchProjectionCmd  `cmd:"" help:"Have the view show another build: one that is ready, or one that was in use."`
		Skip    skipProjectionCmd    `cmd:"" help:"Let a build that stands still go on without the event that it stands at."`
		Retire  retireProjectionCmd  `cmd:"" help:"Remove a projection that no program has any more, or one build of it."`
	} `cmd:"" help:"Look after tables for reading, which are made of the history. Who did what, waybill outbox log has."`
	Partitions  partitionsCmd `cmd:"" help:"Show who publishes which partition of the outbox, until when, and what waits there."`
	DeadLetters struct {
		List    listLettersCmd    `cmd:"" help:"List dead letters, the open ones if nothing else is said, in the order of parking."`
		Show    showLetterCmd     `cmd:"" help:"Show one dead letter: what failed, why, its place in its key, headers and body."`
		Summary summarizeCmd      `cmd:"" help:"Count dead letters by subscription, status, reason, message type and error type."`
		Replay  replayLettersCmd  `cmd:"" help:"Let the subscription handle parked messages again, in the order of their keys."`
		Discard discardLettersCmd `cmd:"" help:"Give up parked messages for good. Their rows stay until they are purged."`
		Purge   purgeLettersCmd   `cmd:"" help:"Remove dead letters that were replayed or discarded long enough ago. Of open ones only those whose --status is named, and never one that holds its key."`
		Log     lettersLogCmd     `cmd:"" help:"Show who replayed, discarded and removed what, and retired which subscription, the last first."`
	} `cmd:"" help:"Look after messages that subscriptions could not handle."`
	Subscriptions struct {
		List   listSubscriptionsCmd `cmd:"" help:"List what the database knows of subscriptions, of every program, also of those that run no more."`
		Retire retireCmd            `cmd:"" help:"Remove all that the database keeps of a subscription that is no more: inbox, attempts, marks, uptime and dead letters. Refused while it was seen within the hour. Safe to end and to repeat."`
	} `cmd:"" help:"Look after what subscriptions leave in the database."`
	Trace       traceCmd       `cmd:"" help:"Show what became of all that has one correlation: messages, timers and dead letters, each below what caused it, in all databases of the configuration."`
	Doctor      doctorCmd      `cmd:"" help:"Examine the databases: tables, settings, long transactions, and rows that nobody publishes. Changes nothing; exit status 1 if something is critical."`
	Contract    contractCmd    `cmd:"" help:"Say what breaks whom if one contract of a context takes the place of another, and what helps. Exit status 1 if something does."`
	Observatory observatoryCmd `cmd:"" help:"Serve a web page that shows all of this, from the databases alone, until it is interrupted."`
	Completion  completionCmd  `cmd:"" help:"Write a script that completes this command line in a shell."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program without its process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("waybill"),
		kong.Description("Looks after the tables of Waybill: outbox, timers, processes, projections, documents, events, inboxes and dead letters."),
		kong.Writers(stdout, stderr),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(out{stdout}, news{stderr}),
	)
	if err != nil {
		panic(err) // the command line is part of this build
	}
	command, err := parser.Parse(args)
	if err != nil {
		return complain(stderr, &usageError{err})
	}
	if err := command.Run(&c); err != nil {
		return complain(stderr, err)
	}
	return 0
}

// complain says what is wrong, and returns the exit status for it.
func complain(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "waybill: %v\n", err)
	if _, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintln(stderr, "Run `waybill --help` for what it can do.")
		return exitUsage
	}
	return exitFailed
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// out is standard output.
type out struct{ io.Writer }

// news is standard error.
type news struct{ io.Writer }
