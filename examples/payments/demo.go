package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/broker/nats/embedded"
)

type options struct {
	payments, cards, workers, kills int
	dir                             string
}

// demo is everything but the workers.
func demo(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	began := time.Now()
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "payments"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	// Workers are killed, the machine isn't: what the operating system has stays.
	server, err := embedded.Open(ctx, embedded.Config{Dir: o.dir, Listen: "127.0.0.1:0", SyncInterval: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	nc, err := connect(server.Client())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	consumer, err := prepare(ctx, js)
	if err != nil {
		return err
	}
	copies, err := send(ctx, js, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d payments of %d cards, sent %d times\n", o.payments, o.cards, copies)
	killed, died, err := supervise(ctx, o, server.Client(), consumer, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d workers killed from outside, %d by themselves in the middle of a payment\n", killed, died)
	b, err := closeBooks(ctx, js)
	if err != nil {
		return err
	}
	b.print(stdout)
	fmt.Fprintf(stdout, "%.1f s\n", time.Since(began).Seconds())
	if len(b.wrong) > 0 {
		return errors.New("the books don't balance")
	}
	return nil
}

// prepare makes the topics, and what the workers share.
func prepare(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	for _, topic := range []string{"payments", "confirmations"} {
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage,
			// The least that there is: copies are to be seen, not absorbed by the server.
			Duplicates: 100 * time.Millisecond,
		})
		if err != nil {
			return nil, err
		}
	}
	return js.CreateOrUpdateConsumer(ctx, "payments", jetstream.ConsumerConfig{
		Durable: "cards", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second,
	})
}

// send sends each payment one to three times, in any order. The same number is the
// same payment in every run.
func send(ctx context.Context, js jetstream.JetStream, o options) (copies int, err error) {
	var numbers []int
	for n := range o.payments {
		for range 1 + rand.IntN(3) {
			numbers = append(numbers, n)
		}
	}
	rand.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	for _, n := range numbers {
		card := fmt.Sprintf("card-%03d", n%o.cards)
		body, err := json.Marshal(Payment{Card: card, Cents: int64(100 + n*7%9900)})
		if err != nil {
			return 0, err
		}
		m := &natsgo.Msg{Subject: "payments", Data: body, Header: natsgo.Header{"id": {fmt.Sprintf("payment-%d", n)}, "card": {card}}}
		if _, err := js.PublishMsg(ctx, m); err != nil {
			return 0, err
		}
	}
	return len(numbers), nil
}

// supervise keeps workers running until all payments are acknowledged, and kills
// them meanwhile.
func supervise(ctx context.Context, o options, server nats.Config, consumer jetstream.Consumer, stderr io.Writer) (killed, died int, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var deaths, kills, errored atomic.Int64
	var running sync.WaitGroup
	said := &shared{to: stderr}
	ask := make(chan struct{}) // One worker that hears of it is killed.
	for range o.workers {
		running.Go(func() {
			for ctx.Err() == nil {
				cmd := exec.Command(program, "work", server.URL, server.NKey) //nolint:noctx // It ends by being killed, below.
				cmd.Stderr = said
				if err := cmd.Start(); err != nil {
					stop(err)
					return
				}
				ended := make(chan struct{})
				go func() {
					_ = cmd.Wait() // It says how the process died.
					close(ended)
				}()
				select {
				case <-ended:
					if cmd.ProcessState.ExitCode() != exitWorker {
						deaths.Add(1)
					} else if errored.Add(1) > 10 {
						stop(errors.New("workers end by themselves: their errors are above"))
					}
					continue
				case <-ask:
					kills.Add(1)
				case <-ctx.Done():
				}
				_ = cmd.Process.Kill()
				<-ended
			}
		})
	}
	err = oversee(ctx, o.kills, consumer, ask)
	stop(err)
	running.Wait()
	return int(kills.Load()), int(deaths.Load()), err
}

// shared is a writer that several processes have.
type shared struct {
	mu sync.Mutex
	to io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(p)
}

// oversee has workers killed, and returns when nothing is left to do.
func oversee(ctx context.Context, kills int, consumer jetstream.Consumer, ask chan<- struct{}) error {
	for {
		pause := time.NewTimer(rand.N(100 * time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
		if kills > 0 {
			select {
			case ask <- struct{}{}:
				kills--
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		info, err := consumer.Info(ctx)
		if err != nil {
			return err
		}
		if kills == 0 && info.NumPending == 0 && info.NumAckPending == 0 {
			return nil
		}
	}
}
