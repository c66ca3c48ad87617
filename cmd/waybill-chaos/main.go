// Command waybill-chaos runs engines, writers and consumers against a PostgreSQL and a Kafka,
// kills, stops and cuts them off for a while, and says whether anything was lost, invented,
// put out of order, done twice or given up.
//
//	go run ./cmd/waybill-chaos --postgres postgres://user@127.0.0.1:5432/test --kafka 127.0.0.1:9092
//
// It works in two schemas and on topics of its own, which it removes in the end unless it has
// found something. Its exit status is 0 if nothing is wrong, 1 if something is, and 2 if it
// was called wrongly or couldn't do its work.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/waybill-go/waybill/internal/chaos"
)

const (
	exitFound = 1
	exitWrong = 2
)

type cli struct {
	Postgres        string            `required:"" env:"WAYBILL_POSTGRES" placeholder:"URL" help:"PostgreSQL, whose user may create schemas."`
	Kafka           []string          `required:"" env:"WAYBILL_KAFKA" placeholder:"HOST:PORT,…" help:"Some of Kafka's servers, without TLS and login."`
	Duration        time.Duration     `default:"10m" help:"How long there are faults."`
	Seed            *uint64           `placeholder:"N" help:"Of the plan of faults. Defaults to one by chance, which is shown."`
	Schema          string            `placeholder:"NAME" help:"Schema to work in, new or empty, beside NAME_consumers; topics begin with NAME and a dot. Defaults to a name by chance."`
	Faults          []string          `placeholder:"KIND,…" help:"Faults to do: ${kinds}, and those of --disturb. Defaults to all that are possible."`
	RestartPostgres string            `placeholder:"COMMAND" help:"A shell command that kills PostgreSQL and starts it again. It returns when PostgreSQL answers."`
	RestartKafka    string            `placeholder:"COMMAND" help:"The same for Kafka, or for one of its servers."`
	Disturb         map[string]string `placeholder:"NAME=COMMAND" mapsep:"none" help:"A further fault: a shell command that breaks something and mends it. May be given several times."`
	Asynchronous    bool              `help:"A failover of --disturb may lose what was committed last, as that to an asynchronous standby does: engines wait until they are told to go on, which this program does, and what PostgreSQL had confirmed and lacks is counted apart."`
	Dir             string            `type:"path" placeholder:"DIR" help:"Where the history and the logs of the processes go. Defaults to a new directory for temporary files."`
	Keep            bool              `help:"Keep schemas, topics and files."`
	JSON            bool              `name:"json" help:"Write the result as JSON."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var code int
	if config := os.Getenv(chaos.NodeVar); config != "" {
		if err := chaos.RunNode(ctx, config, os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	} else {
		code = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	os.Exit(code)
}

// run is the program without its process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("waybill-chaos"),
		kong.Description("Runs engines, writers and consumers on your PostgreSQL and Kafka, disturbs them, and says whether anything was lost, invented, put out of order, done twice or given up."),
		kong.Writers(stdout, stderr),
		kong.Vars{"kinds": strings.Join(chaos.Kinds(), ", ")},
	)
	if err != nil {
		panic(err) // the command line is part of this build
	}
	if _, err := parser.Parse(args); err != nil {
		fmt.Fprintf(stderr, "waybill-chaos: %v\nRun `waybill-chaos --help` for usage.\n", err)
		return exitWrong
	}
	result, err := c.run(ctx, stderr)
	if result != nil {
		err = errors.Join(err, c.show(stdout, result))
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "waybill-chaos: %v\n", err)
		return exitWrong
	case result.Failed():
		return exitFound
	}
	return 0
}

func (c *cli) run(ctx context.Context, news io.Writer) (*chaos.Result, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cfg := chaos.Config{
		Postgres: c.Postgres, Kafka: c.Kafka, Duration: c.Duration, Schema: c.Schema, Faults: c.Faults,
		Commands: map[string]string{}, Dir: c.Dir, Keep: c.Keep, Asynchronous: c.Asynchronous, Program: program, News: news,
	}
	if cfg.Seed = rand.Uint64(); c.Seed != nil { //nolint:gosec // Anybody may know it.
		cfg.Seed = *c.Seed
	}
	if cfg.Schema == "" {
		cfg.Schema = fmt.Sprintf("waybill_chaos_%08x", rand.Uint32()) //nolint:gosec // It only has to be new.
	}
	maps.Copy(cfg.Commands, c.Disturb)
	for kind, command := range map[string]string{"restart-postgres": c.RestartPostgres, "restart-kafka": c.RestartKafka} {
		if command != "" {
			cfg.Commands[kind] = command
		}
	}
	own := c.Dir == ""
	if own {
		cfg.Dir, err = os.MkdirTemp("", "waybill-chaos-")
	} else {
		err = os.MkdirAll(c.Dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	result, err := chaos.Run(ctx, cfg)
	if own && !c.Keep && err == nil && !result.Failed() {
		result.History = ""
		err = os.RemoveAll(cfg.Dir)
	}
	return result, err
}

func (c *cli) show(to io.Writer, result *chaos.Result) error {
	if !c.JSON {
		return result.Print(to)
	}
	lines := json.NewEncoder(to)
	lines.SetIndent("", "  ")
	return lines.Encode(result)
}
