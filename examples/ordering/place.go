package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/repository"
)

const (
	defaultOrders    = 500
	defaultCustomers = 100
	defaultWriters   = 4
)

// place writes orders and publishes nothing: it opens no broker.
func (p program) place(ctx context.Context, args []string) error {
	var o placeOptions
	if err := o.parse(args); err != nil {
		return err
	}
	var source iter.Seq[job]
	var file *orderFile
	if o.file == "" {
		source = randomOrders(o.orders, o.customers)
	} else {
		opened, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer opened.Close()
		if file, err = newOrderFile(opened, o.file, p.stderr); err != nil {
			return err
		}
		source = file.orders(o.part, o.parts)
	}

	orders, shipments, done, err := p.databases(ctx)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer done()
	if err := engine.Check(ctx, orders, shipments); err != nil {
		return unlessStopped(ctx, err)
	}
	begin := time.Now()
	w := &writing{
		units: orders, orders: repository.New[*ordering.Order](orders),
		writers: o.writers, stdout: p.stdout, stderr: p.stderr,
	}
	err = w.run(ctx, paced(ctx, cancelling(source, o.cancelPercent), o.rate))
	fmt.Fprintf(p.stderr, "%v in %v\n", w, time.Since(begin).Round(time.Millisecond))
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return nil // told to stop
	case file != nil:
		return file.err()
	}
	return nil
}

// placeOptions are the flags of place.
type placeOptions struct {
	file                       string
	part, parts                int
	orders, customers, writers int
	cancelPercent              int
	rate                       float64
}

func (o *placeOptions) parse(args []string) error {
	flags := newFlags()
	flags.StringVar(&o.file, "file", "", "")
	part := flags.String("part", "", "")
	flags.IntVar(&o.orders, "orders", defaultOrders, "")
	flags.IntVar(&o.customers, "customers", defaultCustomers, "")
	flags.IntVar(&o.writers, "writers", defaultWriters, "")
	flags.IntVar(&o.cancelPercent, "cancel-percent", 0, "")
	flags.Float64Var(&o.rate, "rate", 0, "")
	if err := parse(flags, args); err != nil {
		return err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	var err error
	if o.part, o.parts, err = parsePart(*part); err != nil {
		errs = append(errs, err)
	}
	must(!given["file"] || o.file != "", "--file is empty: name a file")
	must(!given["file"] || !given["orders"] && !given["customers"], "--orders and --customers are for orders that are made up: leave them out, or --file")
	must(given["file"] || !given["part"], "--part goes with --file")
	must(o.orders >= -1, "--orders is %d: 0 or more, or -1 for no end", o.orders)
	must(o.customers > 0, "--customers is %d: at least 1", o.customers)
	must(o.writers > 0, "--writers is %d: at least 1", o.writers)
	must(o.cancelPercent >= 0 && o.cancelPercent <= 100, "--cancel-percent is %d: from 0 to 100", o.cancelPercent)
	must(o.rate >= 0, "--rate is %v: above 0, or 0 for as many as possible", o.rate)
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return nil
}

// parsePart reads I/N.
func parsePart(s string) (part, parts int, err error) {
	if s == "" {
		return 1, 1, nil
	}
	first, second, _ := strings.Cut(s, "/")
	part, errPart := strconv.Atoi(first)
	parts, errParts := strconv.Atoi(second)
	if errPart != nil || errParts != nil || part < 1 || part > parts {
		return 0, 0, fmt.Errorf("--part is %q: I/N, with I from 1 to N", s)
	}
	return part, parts, nil
}
