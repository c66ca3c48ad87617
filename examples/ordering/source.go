package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/waybill-go/waybill/examples/ordering/ordering"
)

// job is an order to be placed, and what is to be done with it afterwards. Jobs
// of one customer are done one after the other.
type job struct {
	customer     string
	order        func() (*ordering.Order, error)
	note, cancel bool
}

var articles = []string{"tea", "coffee", "cocoa", "cups", "sugar", "biscuits"}

// randomOrders are n orders, or endless ones if n is -1.
func randomOrders(n, customers int) iter.Seq[job] {
	return func(yield func(job) bool) {
		for i := 0; i != n; i++ {
			if !yield(randomOrder(fmt.Sprintf("customer-%d", 1+rand.IntN(customers)))) {
				return
			}
		}
	}
}

// randomOrder is an order of a customer, whose name also says how it is paid for: see
// [billing.Kind].
func randomOrder(customer string) job {
	lines := make([]ordering.Line, 1+rand.IntN(3))
	for i := range lines {
		quantity := 1 + rand.Int64N(5)
		lines[i] = ordering.Line{Article: articles[rand.IntN(len(articles))], Quantity: quantity, Amount: quantity * (99 + 50*rand.Int64N(20))}
	}
	return job{customer: customer, order: func() (*ordering.Order, error) { return ordering.Place(customer, lines...) }}
}

// cancelling marks percent of the jobs as to be cancelled, evenly spread.
func cancelling(jobs iter.Seq[job], percent int) iter.Seq[job] {
	return func(yield func(job) bool) {
		sum := 0
		for j := range jobs {
			if sum += percent; sum >= 100 {
				sum -= 100
				j.cancel = true
			}
			if !yield(j) {
				return
			}
		}
	}
}

// paced yields rate jobs per second until ctx is done; 0 is without pauses.
func paced(ctx context.Context, jobs iter.Seq[job], rate float64) iter.Seq[job] {
	return func(yield func(job) bool) {
		begin, n := time.Now(), 0
		for j := range jobs {
			if rate > 0 {
				due := begin.Add(time.Duration(float64(n) / rate * float64(time.Second)))
				select {
				case <-time.After(time.Until(due)):
				case <-ctx.Done():
				}
			}
			if n++; ctx.Err() != nil || !yield(j) {
				return
			}
		}
	}
}

// header is the first line of a file of orders.
const header = "customer,date,quantity,amount_cents"

// orderFile is a file of orders, one per line.
type orderFile struct {
	name   string // without its directory
	lines  *bufio.Reader
	stderr io.Writer
	bad    int
	broken error
}

func newOrderFile(r io.Reader, path string, stderr io.Writer) (*orderFile, error) {
	f := &orderFile{name: filepath.Base(path), lines: bufio.NewReader(r), stderr: stderr}
	first, err := f.lines.ReadString('\n')
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: %w", path, err)
	case !utf8.ValidString(f.name):
		return nil, fmt.Errorf("the name %q is not UTF-8, and orders are called by it: rename the file", f.name)
	case first == "":
		return nil, fmt.Errorf("%s is empty: its first line must be %s", path, header)
	case strings.TrimRight(strings.TrimPrefix(first, "\ufeff"), "\r\n") != header:
		return nil, fmt.Errorf("%s begins with %.60q: its first line must be %s", path, first, header)
	}
	return f, nil
}

// orders are those of the customers of one part. A line that is no order is
// reported, and the others go on.
func (f *orderFile) orders(part, parts int) iter.Seq[job] {
	return func(yield func(job) bool) {
		for number := 2; ; number++ {
			line, err := f.lines.ReadBytes('\n')
			if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
				j, wrong := f.order(line, number)
				if wrong != nil {
					f.bad++
					fmt.Fprintf(f.stderr, "%s, line %d: %v\n", f.name, number, wrong)
				} else if inPart(j.customer, part, parts) && !yield(j) {
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					f.broken = err
				}
				return
			}
		}
	}
}

// err says what was wrong with the file, after its orders were read.
func (f *orderFile) err() error {
	var errs []error
	if f.broken != nil {
		errs = append(errs, fmt.Errorf("%s: %w", f.name, f.broken))
	}
	if f.bad > 0 {
		errs = append(errs, fmt.Errorf("%s: lines that are no orders: %d", f.name, f.bad))
	}
	return errors.Join(errs...)
}

func (f *orderFile) order(line []byte, number int) (job, error) {
	fields, err := csv.NewReader(bytes.NewReader(line)).Read()
	switch wrong, ok := errors.AsType[*csv.ParseError](err); {
	case ok:
		return job{}, wrong.Err // the rest of it counts lines of its own
	case err != nil:
		return job{}, err
	case len(fields) != 4:
		return job{}, fmt.Errorf("%d fields instead of 4: %s", len(fields), header)
	}
	customer := fields[0]
	date, wrongDate := time.Parse(time.DateOnly, fields[1])
	quantity, wrongQuantity := strconv.ParseInt(fields[2], 10, 64)
	amount, wrongAmount := strconv.ParseInt(fields[3], 10, 64)
	switch {
	case customer == "" || !utf8.ValidString(customer) || strings.ContainsFunc(customer, unicode.IsControl):
		return job{}, fmt.Errorf("customer is %q: some text", customer)
	case wrongDate != nil:
		return job{}, fmt.Errorf("date is %q: year-month-day, as in 1997-01-31", fields[1])
	case wrongQuantity != nil || quantity < 1:
		return job{}, fmt.Errorf("quantity is %q: a whole number, at least 1", fields[2])
	case wrongAmount != nil || amount < 0:
		return job{}, fmt.Errorf("amount_cents is %q: a whole number, at least 0", fields[3])
	}
	return job{customer: customer, order: func() (*ordering.Order, error) {
		return ordering.Import(fmt.Sprintf("%s-%d", f.name, number), date, customer,
			ordering.Line{Article: "CD", Quantity: quantity, Amount: amount})
	}}, nil
}

// spread gives a customer two numbers: one for its part and one for its writer.
// They are the same in every process, and have nothing to do with each other:
// the customers of one part are to have different writers.
func spread(customer string) (part, writer uint64) {
	sum := sha256.Sum256([]byte(customer))
	return binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])
}

// inPart says whether a customer is in a part, the first being 1.
func inPart(customer string, part, parts int) bool {
	n, _ := spread(customer)
	return int(n%uint64(parts)) == part-1
}

// writerOf is the writer of all orders of a customer.
func writerOf(customer string, writers int) int {
	_, n := spread(customer)
	return int(n % uint64(writers))
}
