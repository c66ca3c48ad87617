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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/waybill-go/waybill/internal/buildinfo"
	"github.com/waybill-go/waybill/internal/dberr"
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

	Version kong.VersionFlag `help:"Print the version, the commit and the Go version, and exit."`

	Migrate migrateCmd `cmd:"" help:"Create or update Waybill's tables. Safe to repeat, and while services run."`
	Outbox  struct {
		Stats    statsCmd       `cmd:"" help:"Show what is waiting, what failed and who publishes, per target broker."`
		List     listRowsCmd    `cmd:"" help:"List rows in the order in which they were stored; without --status, those not yet published."`
		Show     showRowCmd     `cmd:"" help:"Show a message: its targets, how far it has come, and what it is waiting for."`
		Retry    retryRowsCmd   `cmd:"" help:"Try failed and abandoned rows again, at once or at a rate."`
		Skip     skipRowsCmd    `cmd:"" help:"Release what held rows block in their keys. The rows themselves stay abandoned."`
		Abandon  abandonRowsCmd `cmd:"" help:"Give up on pending and failed rows. Later rows of their keys are published."`
		Purge    purgeCmd       `cmd:"" help:"Remove rows that have expired, or that were published or abandoned long enough ago. Never one that is held or not delivered."`
		Log      rowsLogCmd     `cmd:"" help:"Show who retried, skipped, abandoned and removed what, latest first."`
		Backfill backfillCmd    `cmd:"" help:"Copy earlier events for an external broker that is joining, then make it live. Safe to interrupt and repeat, and while services run."`
	} `cmd:"" help:"Inspect the outbox, and retry, skip, abandon or purge its rows."`
	Timers struct {
		List listTimersCmd `cmd:"" help:"List timers, by when they are due."`
		Show showTimerCmd  `cmd:"" help:"Show one timer: whose it is, when it is due, and its message."`
		Move moveTimersCmd `cmd:"" help:"Reschedule waiting timers. Timers that were already sent are left alone."`
		Fire fireTimersCmd `cmd:"" help:"Make waiting timers due now."`
		Stop stopTimersCmd `cmd:"" help:"Cancel timers. A message already sent no longer has an effect."`
	} `cmd:"" help:"Manage timers: messages scheduled for later. waybill outbox log shows who moved and stopped what."`
	Processes struct {
		List  listProcessesCmd  `cmd:"" help:"List processes, oldest first."`
		Show  showProcessCmd    `cmd:"" help:"Show one process: its state, what it last heard, its timers and its dead letters."`
		Stats processesStatsCmd `cmd:"" help:"Count processes by kind: running, awaited, ended, and idle (no message for 30 days and no timer)."`
		End   endProcessesCmd   `cmd:"" help:"End running processes and stop their timers. Later messages for them are ignored; nothing is compensated."`
		Wake  wakeProcessCmd    `cmd:"" help:"Fire a timer of a process now."`
	} `cmd:"" help:"Manage processes, which react to events and send commands. waybill outbox log shows who ended what."`
	Projections struct {
		List    listProjectionsCmd   `cmd:"" help:"List builds of projections: which one is in use, how far each has come, and why one has stopped."`
		Rebuild rebuildProjectionCmd `cmd:"" help:"Have the engines rebuild the version in use alongside it, then switch over."`
		Switch  switchProjectionCmd  `cmd:"" help:"Point the view at another build: one that is ready, or one that was in use before."`
		Skip    skipProjectionCmd    `cmd:"" help:"Let a stopped build continue without the event it stopped at."`
		Retire  retireProjectionCmd  `cmd:"" help:"Remove a projection that no program declares any more, or one of its builds."`
	} `cmd:"" help:"Manage projections: read tables built from the history. waybill outbox log shows who did what."`
	History struct {
		Head      historyHeadCmd   `cmd:"" help:"Show the highest and lowest positions of the history, and which contexts keep their events."`
		Import    importHistoryCmd `cmd:"" help:"Add to the history events that were raised before it began and are still in the outbox. Refused once a projection has read past its beginning. Safe to interrupt and repeat, and while services run."`
		Republish republishCmd     `cmd:"" help:"Publish kept events once more, under their own ids, such as those that a command raised. A consumer doesn't handle again what its inbox knows. Safe to interrupt, and while services run."`
	} `cmd:"" help:"Manage the history: the events that are kept. waybill outbox log shows who did what."`
	Partitions  partitionsCmd `cmd:"" help:"Show who publishes which partition of the outbox, until when, and what is waiting there."`
	DeadLetters struct {
		List    listLettersCmd    `cmd:"" help:"List dead letters in the order in which they were parked; without --status, the open ones."`
		Show    showLetterCmd     `cmd:"" help:"Show one dead letter: what failed, why, its place in its key, headers and body."`
		Summary summarizeCmd      `cmd:"" help:"Count dead letters by subscription, status, reason, message type and error type."`
		Replay  replayLettersCmd  `cmd:"" help:"Have the subscription handle parked messages again, in key order."`
		Discard discardLettersCmd `cmd:"" help:"Give up on parked messages. Their rows stay until they are purged."`
		Purge   purgeLettersCmd   `cmd:"" help:"Remove dead letters that were replayed or discarded long enough ago. Removes open ones only if --status names theirs, and never one that holds its key."`
		Log     lettersLogCmd     `cmd:"" help:"Show who replayed, discarded and removed what, and retired which subscription, latest first."`
	} `cmd:"" help:"Manage dead letters: messages that subscriptions could not handle."`
	Subscriptions struct {
		List   listSubscriptionsCmd `cmd:"" help:"List every subscription that the database knows, including those that no longer run."`
		Retire retireCmd            `cmd:"" help:"Remove everything the database keeps about a subscription that no longer exists: inbox, attempts, marks, uptime and dead letters. Refused if it was seen within the last hour. Safe to interrupt and repeat."`
	} `cmd:"" help:"List subscriptions, and remove what old ones left in the database."`
	Database struct {
		Show   showDatabaseCmd   `cmd:"" help:"Show which database the outbox was written in, and which one this is."`
		Accept acceptDatabaseCmd `cmd:"" help:"Let engines publish from this database, after a failover, a restore or a move. Until then they wait, as it could be a copy."`
	} `cmd:"" help:"Tell a database from its copies, and accept one that takes another's place."`
	Trace       traceCmd       `cmd:"" help:"Show everything with one correlation id: messages, timers and dead letters, each below what caused it, across all databases of the configuration."`
	Doctor      doctorCmd      `cmd:"" help:"Examine the databases: tables, settings, long transactions, and rows that nobody publishes. Changes nothing; exit status 1 if something is critical."`
	Contract    contractCmd    `cmd:"" help:"Compare two contracts of a context: what a change breaks, for whom, and how to fix it. Exit status 1 if anything breaks."`
	Observatory observatoryCmd `cmd:"" help:"Serve a web page that shows all of this, from the databases alone. Runs until interrupted."`
	Completion  completionCmd  `cmd:"" help:"Print a shell completion script."`
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
	answers := out{&outlet{Writer: stdout}}
	build := buildinfo.Read()
	parser, err := kong.New(&c,
		kong.Name("waybill"),
		kong.Description("Inspects and manages Waybill's tables: outbox, timers, processes, projections, documents, events, inboxes and dead letters."),
		kong.Writers(answers, stderr),
		kong.Vars{"version": version(build)},
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(answers, news{stderr}),
	)
	if err != nil {
		panic(err) // the command line is part of this build
	}
	command, err := parser.Parse(args)
	if err != nil {
		return complain(stderr, &usageError{whichCommand(err)})
	}
	if err := cmp.Or(unsaid(command), backwards(command)); err != nil {
		return complain(stderr, &usageError{err})
	}
	err = command.Run(&c)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if answers.failed != nil && !errors.Is(err, answers.failed) {
		err = errors.Join(err, fmt.Errorf("not all could be written to standard output: %w", answers.failed))
	}
	if err != nil {
		return complain(stderr, err)
	}
	return 0
}

// version is a line for people. A build of a published version knows no commit.
func version(build buildinfo.Info) string {
	commit := ""
	if build.Revision != buildinfo.Unknown {
		commit = "commit " + build.Revision + ", "
	}
	return fmt.Sprintf("waybill %s (%s%s)", build.Version, commit, build.Go)
}

// whichCommand names all commands that could stand where one is missing: the parser's own
// message ends after five.
func whichCommand(err error) error {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || !strings.HasPrefix(err.Error(), "expected one of ") {
		return err
	}
	at := parse.Context.Selected()
	if at == nil {
		at = parse.Context.Model.Node
	}
	names := make([]string, 0, len(at.Children))
	for _, child := range at.Children {
		names = append(names, child.Name)
	}
	return fmt.Errorf("%s needs a command: %s", at.FullPath(), strings.Join(names, ", "))
}

// unsaid is an error if a flag or an argument is there without a value, as "$KEY" is in a script
// that has no KEY, or is 0 where only more makes sense: taken as left out it would choose more than was
// meant, up to all there is.
func unsaid(command *kong.Context) error {
	for _, p := range command.Path {
		given := p.Positional
		if p.Flag != nil {
			given = p.Flag.Value
		}
		if given == nil {
			continue
		}
		switch given.Target.Kind() {
		case reflect.String, reflect.Slice, reflect.Map:
			if given.Target.Len() == 0 {
				return fmt.Errorf("%s is empty: give it a value, or leave it out", given.ShortSummary())
			}
		default:
			if given.Tag.Has("positive") && given.Target.IsZero() {
				return fmt.Errorf("%s is 0: give it more, or leave it out", given.ShortSummary())
			}
		}
	}
	return nil
}

// backwards is an error if --until is not after --from: nothing is in between, as with "2h" and "3h" ago.
func backwards(command *kong.Context) error {
	times := map[string]time.Time{}
	for _, flag := range command.Flags() {
		if m, ok := reflect.TypeAssert[moment](flag.Target); ok {
			times[flag.Name] = m.Time
		}
	}
	from, until := times["from"], times["until"]
	if from.IsZero() || until.IsZero() || from.Before(until) {
		return nil
	}
	return fmt.Errorf("nothing is at --from %s or later and before --until %s: exchange the two", when(from), when(until))
}

// complain says what is wrong, and returns the exit status for it.
func complain(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "waybill: %s\n", printable(err.Error()))
	if _, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintln(stderr, "Run `waybill --help` for usage.")
		return exitUsage
	}
	if dberr.CodeOf(err) == dberr.Denied && !strings.Contains(err.Error(), "GRANT") {
		fmt.Fprintln(stderr, dberr.Remedy(dberr.Denied)) // PostgreSQL names neither the role nor the right
	}
	return exitFailed
}

// usageError is a command line that can't be run.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// out is standard output.
type out struct{ *outlet }

// outlet remembers how much was written, and why something could not be, as hardly anybody who
// writes asks.
type outlet struct {
	io.Writer

	wrote  int
	failed error
}

func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	o.wrote += n
	o.failed = cmp.Or(o.failed, err)
	return n, err
}

// news is standard error.
type news struct{ io.Writer }
