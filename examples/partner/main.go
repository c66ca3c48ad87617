// Command partner prints what a service tells its partners, from the first
// message on, one body per line.
//
//	partner --kafka 127.0.0.1:9092 --topic partner.ordering.order
//	partner --nats nats://127.0.0.1:4222 --topic partner.ordering.order --count 10
//	partner --nats nats://127.0.0.1:4222 --nkey waybill-data/nats/client.nk --topic …
//
// It ends after --count messages, or when it is interrupted. All that it knows
// of the service is in its command line: it uses a plain client, and JSON.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("partner", flag.ContinueOnError)
	flags.SetOutput(stderr)
	kafka := flags.String("kafka", "", "`host:port` of a Kafka server")
	nats := flags.String("nats", "", "`URL` of a NATS server")
	nkey := flags.String("nkey", "", "`file` with the key that the NATS server wants, if it does")
	topic := flags.String("topic", "", "the `topic`, or the subject, to read")
	count := flags.Int("count", 0, "end after so many messages; 0: never")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return exitUsage
	}
	if (*kafka == "") == (*nats == "") || *topic == "" || *count < 0 || *nkey != "" && *nats == "" || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "partner: give one of --kafka and --nats (with its --nkey), a --topic, and a --count of 0 or more")
		return exitUsage
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &printer{out: stdout, left: *count, enough: cancel}
	var err error
	if *kafka != "" {
		err = readKafka(ctx, *kafka, *topic, stderr, p.print)
	} else {
		err = readNATS(ctx, *nats, *nkey, *topic, stderr, p.print)
	}
	if err = errors.Join(p.err, err); err != nil {
		fmt.Fprintf(stderr, "partner: %v\n", err)
		return exitFailed
	}
	return 0
}

// printer writes bodies until there were enough of them. One goroutine uses it.
type printer struct {
	out    io.Writer
	left   int // 0: no end
	enough context.CancelFunc
	done   bool
	err    error
}

func (p *printer) print(body []byte) {
	if p.done {
		return
	}
	var line bytes.Buffer
	if p.err = json.Compact(&line, body); p.err != nil {
		p.err = fmt.Errorf("a message is not JSON: %w: %.100q", p.err, body)
	} else {
		line.WriteByte('\n')
		_, p.err = p.out.Write(line.Bytes())
	}
	p.left--
	if p.done = p.left == 0 || p.err != nil; p.done {
		p.enough()
	}
}
