// Command lending is a whole service on Waybill: a library lends books, and billing
// takes a fee for each loan. Between them stands a process: a loan is placed, its fee is
// asked for, and it is confirmed when that is paid; if it is declined, or not paid in
// time, the loan is cancelled, the copy taken back and what was paid refunded.
//
//	go run ./examples/lending
//
// needs nothing installed. It tells that story, and closes the books.
//
//	go run ./examples/lending 127.0.0.1:8080
//
// is the service, over HTTP, with its data in ./lending-data, until it is interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/lending/billing"
	"github.com/waybill-go/waybill/examples/lending/library"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
	"github.com/waybill-go/waybill/web"
)

const storyPayWithin, stopTimeout = 1500 * time.Millisecond, 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	slog.SetLogLoggerLevel(slog.LevelWarn)
	err := run(ctx, os.Stdout, "lending-data", os.Args[1:]...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lending:", err)
		os.Exit(1)
	}
}

// run tells the story, or serves if there is an address.
func run(ctx context.Context, out io.Writer, dir string, addr ...string) (err error) {
	if len(addr) > 0 {
		return with(ctx, dir, library.PayWithin, addr[0], func(*apps) error { <-ctx.Done(); return nil })
	}
	if dir, err = os.MkdirTemp("", "lending"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return with(ctx, dir, storyPayWithin, "", func(a *apps) error { return a.tell(ctx, out) })
}

// apps are both contexts at work.
type apps struct {
	lib *library.App
	bil *billing.App
}

// with runs them on the data of a directory, for as long as use takes, and over HTTP if
// there is an address.
func with(ctx context.Context, dir string, payWithin time.Duration, addr string, use func(*apps) error) (err error) {
	nats, err := embedded.Open(ctx, embedded.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nats.Close(context.WithoutCancel(ctx))) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "lending.db")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	lent, err1 := uow.New(uow.Config{Domain: library.Domain, Providers: []uow.Provider{db}, History: true})
	billed, err2 := uow.New(uow.Config{Domain: billing.Domain, Providers: []uow.Provider{db}})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := engine.Migrate(ctx, lent, billed); err != nil {
		return err
	}
	a := &apps{library.New(lent, payWithin), billing.New(billed)}
	cfg := engine.Config{Contexts: []engine.Context{a.lib.Context(), a.bil.Context()}, Brokers: map[string]broker.Broker{"default": nats}}
	if addr != "" {
		cfg.App = engine.App{Addr: addr, Handler: a.routes()}
	}
	eng, err := engine.New(cfg)
	if err == nil {
		err = eng.Start(ctx)
	}
	if err != nil {
		return err
	}
	err = use(a)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return errors.Join(err, eng.Stop(stop))
}

// routes are the service's. Who it is that asks, an application's own authentication
// would say, in web.Origin.Tenant.
func (a *apps) routes() http.Handler {
	loans := web.API{Commands: a.lib.Commands, Errors: web.Errors{library.ErrNoCopy: http.StatusConflict, library.ErrNotLent: http.StatusConflict}}
	fees := web.API{Commands: a.bil.Commands, Errors: web.Errors{billing.ErrNotOpen: http.StatusConflict}}
	mux := http.NewServeMux()
	mux.Handle("POST /books", web.Command[library.AcquireBook](loans, nil))
	mux.Handle("PUT /loans/{id}", web.Command(loans, func(r *http.Request, c *library.PlaceLoan) { c.LoanID = r.PathValue("id") }))
	mux.Handle("POST /loans/{id}/return", web.Command(loans, func(r *http.Request, c *library.ReturnLoan) { c.LoanID = r.PathValue("id") }))
	mux.Handle("POST /loans/{id}/pay", web.Command(fees, func(r *http.Request, c *billing.PayFee) { c.LoanID = r.PathValue("id") }))
	mux.HandleFunc("GET /loans/{id}", func(w http.ResponseWriter, r *http.Request) {
		l, err := a.lib.Loans.Get(r.Context(), r.PathValue("id"))
		loans.JSON(w, r, l, err)
	})
	mux.HandleFunc("GET /members/{id}/loans", func(w http.ResponseWriter, r *http.Request) {
		all, err := a.lib.LoansOf(r.Context(), r.PathValue("id"))
		loans.JSON(w, r, all, err)
	})
	return web.Origin{}.Handler(mux)
}

// tell has members lend and pay, and closes the books.
func (a *apps) tell(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Fprintf(out, "Who doesn't pay for a loan within %v goes without.\n", storyPayWithin)
	if err := a.lib.Commands.Do(ctx, library.AcquireBook{ISBN: "b", Copies: 10}); err != nil {
		return err
	}
	paid := 0
	for i, pays := range []time.Duration{0, 0, time.Hour, storyPayWithin - rand.N(200*time.Millisecond)} {
		member := []string{"ann", "broke", "bob", "eve"}[i] // Eve pays just in time, or not.
		what, err := a.visit(ctx, member, pays)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%6s: placed by two requests with one key; %s\n", member, what)
		if what == ends[0] {
			paid++
		}
	}
	book, err := a.lib.Books.Get(ctx, "b")
	if err == nil && book.Lent != paid {
		err = fmt.Errorf("the books don't add up: %d copies are lent, and %d are paid for", book.Lent, paid)
	}
	fmt.Fprintf(out, "The books: %d copies are lent, %d loans are paid for, and nobody else has paid.\n", book.Lent, paid)
	return err
}

// ends are how a member's visit can end.
var ends = []string{"loan active, fee paid", "loan cancelled, fee declined", "loan cancelled, fee voided", "loan cancelled, fee refunded"}

// visit is a member's loan, to its end.
func (a *apps) visit(ctx context.Context, member string, pays time.Duration) (what string, err error) {
	for range 2 { // It doesn't matter whether the first got through.
		err = errors.Join(err, a.lib.Commands.Do(ctx, library.PlaceLoan{LoanID: member, BookID: "b", MemberID: member}, command.Once(member)))
	}
	for began := time.Now(); err == nil && !slices.Contains(ends, what); what, err = a.state(ctx, member) {
		if what == "loan pending, fee requested" && time.Since(began) > pays {
			if err = a.bil.Commands.Do(ctx, billing.PayFee{LoanID: member}); err != nil && !errors.Is(err, billing.ErrNotOpen) {
				return what, err
			}
		}
		<-time.After(20 * time.Millisecond)
	}
	return what, err
}

// state is what both contexts have of a loan.
func (a *apps) state(ctx context.Context, id string) (string, error) {
	loan, err := a.lib.Loans.Get(ctx, id)
	if err != nil {
		return "", err
	}
	charge, err := a.bil.Charges.Get(ctx, id)
	if _, missing := errors.AsType[*repository.NotFoundError](err); missing {
		charge, err = &billing.Charge{Status: "unknown"}, nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("loan %s, fee %s", loan.Status, charge.Status), nil
}
