package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/outbox"
)

const (
	memoryKeys = 10_000
	memoryIdle = 10 * time.Second

	// aloneArg makes the program an engine and nothing else; the prefix of its
	// topics follows.
	aloneArg = "engine"
)

// memoryMetrics are the most that was resident while a backlog was drained, what
// is resident of an engine that has nothing to do, and the rate of the drain.
var memoryMetrics = []string{"draining", "idle", "events/s"}

// memory is of processes that only run an engine: this one holds samples.
func memory(rows int, idle time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		if err := w.anew(ctx); err != nil {
			return nil, err
		}
		got := map[string]float64{}
		err := w.alone(ctx, func(ctx context.Context, pid int) (err error) {
			pause(ctx, idle)
			got["idle"], err = resident(pid, "VmRSS")
			return err
		})
		if err != nil {
			return nil, err
		}

		// All of them at once would take gigabytes.
		for n := 0; n < rows; n += fillAtOnce {
			some, err := w.backlog(ctx, drainage{events: min(fillAtOnce, rows-n), keys: memoryKeys})
			if err != nil {
				return nil, err
			}
			if err := w.insert(ctx, some); err != nil {
				return nil, err
			}
		}
		if err := w.tidy(ctx, product.names...); err != nil {
			return nil, err
		}
		begin := time.Now()
		err = w.alone(ctx, func(ctx context.Context, pid int) (err error) {
			if err := w.drained(ctx, uncounted); err != nil {
				return err
			}
			got["events/s"] = float64(rows) / time.Since(begin).Seconds()
			got["draining"], err = resident(pid, "VmHWM")
			return err
		})
		if err != nil {
			return nil, err
		}
		return got, errors.Join(w.finished(ctx, rows), w.produced(ctx, rows))
	}
}

// alone runs an engine with default settings in a process of its own while do
// works, which is told its number.
func (w *world) alone(ctx context.Context, do func(context.Context, int) error) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	child := exec.CommandContext(context.WithoutCancel(ctx), program, aloneArg, w.prefix()) // it is to stop properly
	child.Env = append(os.Environ(), "WAYBILL_POSTGRES="+w.dsn, "WAYBILL_KAFKA="+w.kafka)
	child.Stderr = w.out
	input, err := child.StdinPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- child.Wait()
		cancel() // nobody is left to wait for
	}()
	err = do(ctx, child.Process.Pid)
	_ = input.Close()
	return errors.Join(err, <-ended)
}

// beAlone is the other side of alone: it ends with its input, and so with a parent
// that was killed, too.
func beAlone(ctx context.Context, prefix string, log io.Writer) (err error) {
	w := &world{out: log, dsn: os.Getenv("WAYBILL_POSTGRES"), kafka: os.Getenv("WAYBILL_KAFKA")}
	if err := w.connect(ctx, w.dsn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.provider.Close()) }()
	k, err := kafka.Open(ctx, kafka.Config{Addresses: []string{w.kafka}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close(context.WithoutCancel(ctx))) }()
	return w.running(ctx, broker.Prefixed(k, prefix), outbox.Config{}, func(context.Context) error {
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
}

// resident is what Linux knows by this name of the memory of a process, in MiB.
func resident(pid int, name string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			var kB float64
			_, err := fmt.Sscanf(value, "%f kB", &kB)
			return kB / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s: it has ended", pid, name)
}

// produced says whether the topic has so many messages; a million is too many to
// read.
func (w *world) produced(ctx context.Context, want int) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(w.kafka))
	if err != nil {
		return err
	}
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, w.prefix()+topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return err
	}
	var have int64
	ends.Each(func(e kadm.ListedOffset) { have += e.Offset })
	if have != int64(want) {
		return fmt.Errorf("the topic has %d messages instead of %d", have, want)
	}
	return nil
}
