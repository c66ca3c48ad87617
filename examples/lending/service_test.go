package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/contract/contracttest"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/examples/lending/billing"
	"github.com/waybill-go/waybill/examples/lending/library"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContractOfBilling(t *testing.T) { contracttest.Check(t, billing.Domain, "billing/testdata") }

type world struct {
	*waybilltest.Kit
	*apps
}

func start(k *waybilltest.Kit) *world {
	units := k.Units(library.Domain, func(c *uow.Config) {
		c.External, c.History = []outbox.Target{{Broker: "partner", Envelope: outbox.CloudEvents}}, true
	})
	w := &world{k, &apps{library.New(units, library.PayWithin), billing.New(k.Units(billing.Domain))}}
	k.Start(w.lib.Context(), w.bil.Context())
	return w
}

var book = library.AcquireBook{ISBN: "b", Copies: 3}

func loan(id, member string) library.PlaceLoan {
	return library.PlaceLoan{LoanID: id, BookID: "b", MemberID: member}
}

func stocked(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := start(waybilltest.New(t))
	require.NoError(t, w.lib.Commands.Do(t.Context(), book))
	return w
}

func (w *world) want(t *testing.T, id, state string, lent int) {
	t.Helper()
	got, err := w.state(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, state, got, id)
	b, err := w.lib.Books.Get(t.Context(), "b")
	require.NoError(t, err)
	require.Equal(t, lent, b.Lent)
}

func TestService(t *testing.T) {
	w := stocked(t)
	ctx := w.Context(domain.Origin{TenantID: "acme", CorrelationID: "c1"})
	for id, member := range map[string]string{"l1": "ann", "l2": "broke", "l3": "bob"} {
		require.NoError(t, w.lib.Commands.Do(ctx, loan(id, member)))
	}
	w.Settle()
	require.NoError(t, w.bil.Commands.Do(ctx, billing.PayFee{LoanID: "l1"}))
	w.Advance(library.PayWithin - time.Minute)
	w.want(t, "l1", "loan active, fee paid", 2)
	w.want(t, "l2", "loan cancelled, fee declined", 2)
	w.want(t, "l3", "loan pending, fee requested", 2)
	w.Advance(time.Minute)
	w.want(t, "l3", "loan cancelled, fee voided", 1)
	w.Advance(15 * 24 * time.Hour)
	w.want(t, "l1", "loan overdue, fee paid", 1)
	all, err := w.lib.LoansOf(ctx, "ann")
	require.NoError(t, err)
	require.Equal(t, []library.CurrentLoan{{LoanID: "l1", MemberID: "ann", BookID: "b", Status: string(library.Overdue)}}, all)
	sent := w.Sent("partner", "library.loan")
	require.Len(t, sent, 5, "three placed, two cancelled: what isn't published stays")
	require.Equal(t, []string{"Library.LoanPlaced.v2", ""}, []string{sent[0].Type, sent[0].TenantID})
}

func TestPaymentAgainstTimeout(t *testing.T) {
	w := stocked(t)
	require.NoError(t, w.lib.Commands.Do(t.Context(), loan("l1", "bob")))
	w.Settle()
	var all sync.WaitGroup
	var late error
	all.Go(func() { late = w.bil.Commands.Do(t.Context(), billing.PayFee{LoanID: "l1"}) })
	all.Go(func() { w.Advance(library.PayWithin) })
	all.Wait()
	w.Settle()
	state, err := w.state(t.Context(), "l1")
	require.NoError(t, err)
	ends := map[bool][]string{true: {"loan active, fee paid", "loan cancelled, fee refunded"}, false: {"loan cancelled, fee voided"}}
	require.Contains(t, ends[late == nil], state)
}

// It is killed before and after each commit, publication and acknowledgement.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	waybilltest.Crash(t, start, func(ctx context.Context, w *world) error {
		if err := w.lib.Commands.Do(ctx, book, command.Once("book")); err != nil {
			return err
		}
		return w.lib.Commands.Do(ctx, loan("l1", "broke"), command.Once("loan"))
	}, func(t *testing.T, w *world) {
		t.Helper()
		w.want(t, "l1", "loan cancelled, fee declined", 0)
	})
}

func TestTwoClients(t *testing.T) {
	w := stocked(t)
	var all sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		all.Go(func() { errs[i] = w.lib.Commands.Do(t.Context(), loan(fmt.Sprint("l", i), "m")) })
	}
	all.Wait()
	refused := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	require.Len(t, refused, 10-book.Copies)
	for _, err := range refused {
		require.ErrorIs(t, err, library.ErrNoCopy)
	}
}

func TestHTTP(t *testing.T) {
	w := stocked(t)
	call := func(want int, method, path, header, value, body string) string {
		r, rec := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)), httptest.NewRecorder()
		r.Header.Set(header, value)
		w.routes().ServeHTTP(rec, r)
		w.Settle()
		require.Equal(t, want, rec.Code, "%s %s: %s", method, path, rec.Body)
		return rec.Body.String()
	}
	for range 2 {
		call(204, "PUT", "/loans/l1", "Idempotency-Key", "k", `{"BookID": "b", "MemberID": "ann"}`)
	}
	call(422, "PUT", "/loans/l1", "Idempotency-Key", "k", `{"BookID": "b", "MemberID": "bob"}`)
	call(204, "POST", "/loans/l1/pay", "", "", "")
	call(409, "POST", "/loans/l1/pay", "", "", "")
	require.Contains(t, call(200, "GET", "/loans/l1", "If-None-Match", `"1"`, ""), "active")
	require.Contains(t, call(200, "GET", "/members/ann/loans", "", "", ""), `"LoanID":"l1"`)
	call(412, "POST", "/loans/l1/return", "If-Match", `"1"`, "")
	call(204, "POST", "/loans/l1/return", "If-Match", `"2"`, "")
	call(412, "POST", "/loans/l1/return", "If-Match", `"2"`, "")
	w.want(t, "l1", "loan returned, fee paid", 0)
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, ""))
	require.Regexp(t, `(?s)ann: .*fee paid\n.*broke: .*fee declined\n.*bob: .*fee voided\n.*The books: `, out.String())
}
