package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/waybill-go/waybill/engine"
)

// errUnbalanced is books that don't balance, after they were printed.
var errUnbalanced = errors.New("the books don't balance")

const lookAgain = 500 * time.Millisecond

func (p program) verify(ctx context.Context, args []string) error {
	flags := newFlags()
	wait := flags.Duration("wait", 0, "")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *wait < 0 {
		return usagef("--wait is %v: 0 or more", *wait)
	}
	until := time.Now().Add(*wait)
	orders, shipments, done, err := p.databases(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := engine.Check(ctx, orders, shipments); err != nil {
		return err
	}
	brokers := []string{orders.Broker()}
	for _, t := range orders.External() {
		brokers = append(brokers, t.Broker)
	}
	for {
		b, err := readBooks(ctx, orders.Providers()[0], brokers)
		if (err == nil && b.OK) || ctx.Err() != nil || !time.Now().Before(until) {
			if err != nil {
				return err
			}
			if err := json.NewEncoder(p.stdout).Encode(b); err != nil || b.OK {
				return err
			}
			return errUnbalanced
		}
		select { // also after an error: a database may be away for a while
		case <-time.After(min(lookAgain, time.Until(until))):
		case <-ctx.Done():
		}
	}
}
