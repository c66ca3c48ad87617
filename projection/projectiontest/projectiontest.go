// Package projectiontest tests projections in the form given, then, on SQLite.
//
//	projectiontest.Then(
//		projectiontest.Given(t, library.Domain, library.CurrentLoans, "l1", LoanPlaced{…}, LoanConfirmed{…}),
//		library.Loans, CurrentLoan{…})
package projectiontest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// patience is how long events may take to be handled.
const patience = 10 * time.Second

// Scenario is a test of one projection. It is for one goroutine.
type Scenario struct {
	t        testing.TB
	units    *uow.Manager
	provider uow.Provider
	domain   *domain.Domain
	name     string
	versions map[string]int64
}

// Given lets a projection handle events of an aggregate, own or foreign ones, each as the
// next version. Its Units, Provider and Previous are left out. An event that it can't
// handle fails the test.
func Given(t testing.TB, d *domain.Domain, p projection.Projection, id string, events ...any) *Scenario {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "projection.db")})
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	for _, set := range []migrate.Set{historydb.Migrations(), repository.Migrations(), projection.Migrations()} {
		must(t, set.Up(t.Context(), db.DB()))
	}
	units, err := uow.New(uow.Config{Domain: d, Providers: []uow.Provider{db}, History: true, NoOutbox: true})
	must(t, err)
	s := &Scenario{t: t, units: units, provider: db, domain: d, name: p.Name, versions: map[string]int64{}}
	p.Units, p.Provider, p.Previous = nil, "", nil
	ps, err := projection.New(units, []projection.Projection{p}, slog.New(slog.DiscardHandler))
	must(t, err)
	r := ps.Runner(db.Name(), nil)
	must(t, r.Start(t.Context()))
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	return s.And(id, events...)
}

// And handles further events.
func (s *Scenario) And(id string, events ...any) *Scenario {
	s.t.Helper()
	var all []outbox.Event
	for _, e := range events {
		of, err := s.domain.EventTypeOf(e)
		must(s.t, err)
		data, err := json.Marshal(e)
		must(s.t, err)
		context, aggregate, _ := strings.Cut(of.Category, "::")
		at := of.Category + "-" + id
		s.versions[at]++
		all = append(all, outbox.Event{Data: data, Key: id, Metadata: domain.Metadata{
			ID: uuid.Must(uuid.NewV7()).String(), Type: of.WireName(), Time: time.Now().UTC(), Stream: at, Category: of.Category, Context: context,
			Aggregate: aggregate, AggregateID: id, Version: s.versions[at], Sequence: fmt.Sprintf("%d.1", s.versions[at]),
		}})
	}
	if len(all) > 0 {
		must(s.t, s.provider.Session().Commit(s.t.Context(), []uow.Statement{{Query: historydb.Insert(all), Rows: -1}}))
	}
	s.wait()
	return s
}

// wait waits until the events are handled, or one can't be.
func (s *Scenario) wait() {
	s.t.Helper()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(s.t.Context(), 50*time.Millisecond)
		err := projection.Wait(ctx, s.units, s.name)
		cancel()
		if err == nil {
			return
		}
		list, listed := projection.List(s.t.Context(), s.provider)
		must(s.t, listed)
		for _, b := range list {
			if b.Failure != nil {
				s.t.Fatalf("projectiontest: %s can't handle %s: %s", s.name, b.Failure.Event, b.Failure.Error)
			}
		}
		if time.Now().After(end) {
			s.t.Fatalf("projectiontest: %v", err)
		}
	}
}

// Then fails the test unless table has exactly these rows, in any order.
func Then[R any](s *Scenario, table *projection.Table[R], rows ...R) {
	s.t.Helper()
	have, err := table.Find(s.t.Context(), s.units, nil)
	must(s.t, err)
	want := slices.Clone(rows)
	var surplus []R
	for _, r := range have {
		if i := slices.IndexFunc(want, func(w R) bool { return reflect.DeepEqual(w, r) }); i >= 0 {
			want = slices.Delete(want, i, i+1)
		} else {
			surplus = append(surplus, r)
		}
	}
	if len(want)+len(surplus) > 0 {
		s.t.Errorf("projectiontest: %s: missing are %+v, and not expected %+v", s.name, want, surplus)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("projectiontest: %v", err)
	}
}
