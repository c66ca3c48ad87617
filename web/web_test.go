package web_test

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
	"github.com/waybill-go/waybill/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	Loan struct {
		domain.Root
		Member string
	}
	PlaceLoan struct {
		LoanID string `json:"loan_id"`
		Member string `json:"member"`
	}
	Transfer struct {
		LoanID string `json:"loan_id"`
		Member string `json:"member"`
	}
	Price      struct{ LoanID string }
	LoanPlaced struct{}
)

var (
	library = domain.MustNew("library",
		domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced]()),
		domain.Command[PlaceLoan](domain.KeyedBy("loan_id")),
		domain.Command[Transfer](domain.KeyedBy("loan_id")),
		domain.Command[Price](domain.KeyedBy("")),
	)
	errNoMember = errors.New("a loan needs a member")
)

type service struct {
	t     *testing.T
	db    uow.Provider
	logs  strings.Builder
	serve http.Handler
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{t: t}
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s.db = db
	units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units))
	loans := repository.New[*Loan](units)
	lib := command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Create(loans, func(c PlaceLoan) (*Loan, error) {
			if c.Member == "" {
				return nil, errNoMember
			}
			l := &Loan{Root: domain.RootWithID(c.LoanID), Member: c.Member}
			l.Raise(LoanPlaced{})
			return l, nil
		}),
		command.Update(loans, func(l *Loan, c Transfer) error { l.Member = c.Member; return nil }),
		command.Returns(func(context.Context, Price) (int, error) { return 7, nil }),
	}})
	api := web.API{Commands: lib, Errors: web.Errors{errNoMember: http.StatusTeapot}, MaxBytes: 100, Logger: slog.New(slog.NewTextHandler(&s.logs, nil))}
	mux := http.NewServeMux()
	mux.Handle("PUT /loans/{id}", web.Command(api, func(r *http.Request, c *PlaceLoan) { c.LoanID = r.PathValue("id") }))
	mux.Handle("POST /loans/{id}/transfer", web.Command(api, func(r *http.Request, c *Transfer) { c.LoanID = r.PathValue("id") }))
	mux.Handle("POST /price", web.Command[Price](api, nil))
	mux.HandleFunc("GET /loans/{id}", func(w http.ResponseWriter, r *http.Request) {
		l, err := loans.Get(r.Context(), r.PathValue("id"))
		api.JSON(w, r, l, err)
	})
	mux.HandleFunc("POST /nothing", func(w http.ResponseWriter, r *http.Request) { api.JSON(w, r, nil, nil) })
	s.serve = web.Origin{
		Tenant: func(r *http.Request) (string, error) {
			if r.Header.Get("User") == "nobody" {
				return "", errors.New("nobody knows you")
			}
			return "acme", nil
		},
		Extensions: func(r *http.Request) map[string]string { return map[string]string{"user": "ann"} },
		TrustTrace: true,
	}.Handler(mux)
	return s
}

// do sends a request; headers are pairs.
func (s *service) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.serve.ServeHTTP(w, r)
	return w
}

func (s *service) problem(w *httptest.ResponseRecorder, status int, detail string) {
	s.t.Helper()
	require.Equal(s.t, status, w.Code, w.Body.String())
	require.Equal(s.t, "application/problem+json", w.Header().Get("Content-Type"))
	var p struct {
		Title, Detail string
		Status        int
	}
	require.NoError(s.t, json.Unmarshal(w.Body.Bytes(), &p))
	require.Equal(s.t, status, p.Status)
	require.Equal(s.t, http.StatusText(status), p.Title)
	require.Contains(s.t, p.Detail, detail)
	require.NotRegexp(s.t, "(uow|repository|command|outbox|domain): ", p.Detail, "a client knows no packages")
}

func TestCommand_IsDoneWithTheOriginOfItsRequest(t *testing.T) {
	s := newService(t)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w := s.do("PUT", "/loans/l1", `{"member":"ann"}`, "X-Correlation-ID", "c1", "Traceparent", trace)
	require.Equal(t, http.StatusNoContent, w.Code, w.Body.String())
	require.Equal(t, "c1", w.Header().Get("X-Correlation-ID"))
	var correlation, tenant, parent string
	require.NoError(t, s.db.Reader().NewRaw("SELECT correlation_id, tenant_id, traceparent FROM outbox").Scan(t.Context(), &correlation, &tenant, &parent))
	require.Equal(t, []string{"c1", "acme", trace}, []string{correlation, tenant, parent})

	require.NotEmpty(t, s.do("PUT", "/loans/l2", `{"member":"ann"}`).Header().Get("X-Correlation-ID"))
	for _, bad := range []string{"a b", strings.Repeat("x", 129), "ü"} {
		got := s.do("POST", "/price", "", "X-Correlation-ID", bad).Header().Get("X-Correlation-ID")
		require.NotEqual(t, bad, got)
		require.Len(t, got, 36)
	}
	s.problem(s.do("POST", "/price", "", "User", "nobody"), http.StatusForbidden, "nobody knows you")

	w = s.do("POST", "/price", "")
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "7", w.Body.String())
}

func TestCommand_WhatIsWrongIsAProblem(t *testing.T) {
	s := newService(t)
	for body, detail := range map[string]string{
		`{"member":"ann","copies":1}`: `unknown field "copies"`, `null`: "it is null", `[]`: "the body is not what is expected", `{"member":"ann"} {}`: "there is more behind",
	} {
		s.problem(s.do("PUT", "/loans/l1", body), http.StatusBadRequest, detail)
	}
	s.problem(s.do("PUT", "/loans/l1", `{"member":"`+strings.Repeat("a", 200)+`"}`), http.StatusRequestEntityTooLarge, "larger than 100 bytes")
	s.problem(s.do("PUT", "/loans/l1", `{}`), http.StatusTeapot, errNoMember.Error())
	s.problem(s.do("POST", "/loans/l1/transfer", `{}`), http.StatusNotFound, "l1")
	s.problem(s.do("PUT", "/loans/l%00", `{"member":"ann"}`), http.StatusUnprocessableEntity, "leave out NUL bytes")
	s.problem(s.do("PUT", "/loans/"+strings.Repeat("l", 2000), `{"member":"ann"}`), http.StatusUnprocessableEntity, "has 2000 bytes")
	s.problem(s.do("POST", "/loans/l%00/transfer", `{}`), http.StatusNotFound, "")
	for _, key := range []string{strings.Repeat("k", 2000), "k\xff"} {
		s.problem(s.do("PUT", "/loans/l1", `{"member":"ann"}`, "Idempotency-Key", key), http.StatusBadRequest, "Idempotency-Key")
	}
	for _, trace := range []string{"00-\xff", strings.Repeat("0", 5000)} { // It is not what a request fails for.
		require.Equal(t, http.StatusNoContent, s.do("PUT", "/loans/"+strconv.Itoa(len(trace)), `{"member":"ann"}`, "Traceparent", trace).Code)
	}
	require.Equal(t, http.StatusNoContent, s.do("PUT", "/loans/l1", `{"member":"ann"}`).Code)
	s.problem(s.do("PUT", "/loans/l1", `{"member":"ann"}`), http.StatusConflict, "")
}

func TestCommand_WithoutHandlersPanicsWhenItIsMade(t *testing.T) {
	require.PanicsWithError(t, "web.Command: API.Commands is missing: give it what command.New returned", func() { web.Command[Price](web.API{}, nil) })
}

func TestJSON_NothingIs204(t *testing.T) {
	w := newService(t).do("POST", "/nothing", "")
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Empty(t, w.Body.String())
}

func TestCommand_IdempotencyKeyAndIfMatch(t *testing.T) {
	s := newService(t)
	for range 2 {
		require.Equal(t, http.StatusNoContent, s.do("PUT", "/loans/l1", `{"member":"ann"}`, "Idempotency-Key", "k").Code)
	}
	s.problem(s.do("PUT", "/loans/l2", `{"member":"ann"}`, "Idempotency-Key", "k"), http.StatusUnprocessableEntity, "take a new key")

	w := s.do("GET", "/loans/l1", "")
	require.Equal(t, `"1"`, w.Header().Get("ETag"))
	require.JSONEq(t, `{"Member":"ann"}`, w.Body.String())
	require.Equal(t, http.StatusNotModified, s.do("GET", "/loans/l1", "", "If-None-Match", `"7", W/"1"`).Code)
	require.Equal(t, http.StatusOK, s.do("GET", "/loans/l1", "", "If-None-Match", `"7"`).Code)
	s.problem(s.do("GET", "/loans/none", ""), http.StatusNotFound, "none")

	s.problem(s.do("POST", "/loans/l1/transfer", `{"member":"bob"}`, "If-Match", `"7"`), http.StatusPreconditionFailed, "has version 1 and not 7")
	s.problem(s.do("POST", "/loans/l1/transfer", `{"member":"bob"}`, "If-Match", `"1", "2"`), http.StatusBadRequest, "and only one")
	require.Equal(t, http.StatusNoContent, s.do("POST", "/loans/l1/transfer", `{"member":"bob"}`, "If-Match", `"1"`).Code)
	require.Equal(t, http.StatusNoContent, s.do("POST", "/loans/l1/transfer", `{"member":"eve"}`, "If-Match", "*").Code)
}

func TestProblem_StatusOfEachError(t *testing.T) {
	var logs strings.Builder
	api := web.API{Logger: slog.New(slog.NewTextHandler(&logs, nil))}
	for _, c := range []struct {
		err    error
		status int
	}{
		{&repository.NotFoundError{Type: "loan", ID: "l"}, 404},
		{&uow.ConflictError{Type: "loan", ID: "l"}, 409},
		{&repository.TakenError{Type: "loan", ID: "l", Index: "isbn", Value: "1", By: "m"}, 409},
		{&projection.BehindError{Name: "loans", Want: 1}, 503},
		{command.Refuse(errors.New("no credit")), 409},
		{&repository.PreconditionError{Type: "loan", ID: "l"}, 412},
		{&outbox.TooLargeError{}, 413},
		{&uow.InvalidError{Type: "loan", ID: "l", Err: errors.New("no member")}, 422},
		{&command.KeyReusedError{Key: "k"}, 422},
		{&uow.CommitUnknownError{Err: errors.New("secret")}, 503},
		{fmt.Errorf("secret: %w", driver.ErrBadConn), 503},
		{fmt.Errorf("secret: %w", &pgconn.PgError{Code: "25006", Message: "read-only, as a standby is"}), 503},
		{&command.ExpiredError{Type: "t", Deadline: time.Now()}, 504},
		{errors.New("secret"), 500},
	} {
		w := httptest.NewRecorder()
		api.Problem(w, httptest.NewRequest(http.MethodGet, "/x", nil), fmt.Errorf("context: %w", c.err))
		require.Equal(t, c.status, w.Code, "%v", c.err)
		require.Equal(t, c.status == 503, w.Header().Get("Retry-After") != "")
		require.NotContains(t, w.Body.String(), "secret")
		require.NotRegexp(t, "(uow|repository|command|outbox): ", w.Body.String(), "a client knows no packages")
	}
	require.Equal(t, 5, strings.Count(logs.String(), "a request failed"))
	require.Contains(t, logs.String(), "secret")
}
