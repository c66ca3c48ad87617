// Package web is what an HTTP handler needs of Waybill: a request's origin, commands by
// HTTP, versions as ETags, errors as problems. It routes nothing, and knows neither users
// nor sessions.
//
//	api := web.API{Commands: lib, Errors: web.Errors{ErrNoCopy: http.StatusConflict}}
//	mux.Handle("PUT /loans/{id}", web.Command(api, func(r *http.Request, c *PlaceLoan) { c.LoanID = r.PathValue("id") }))
//	…
//	handler := web.Origin{Tenant: tenantOf}.Handler(mux)
package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
)

const (
	correlationHeader = "X-Correlation-ID"
	maxCorrelation    = 128
	defaultMaxBytes   = 1 << 20
)

// Origin says where requests come from.
type Origin struct {
	// Tenant returns the tenant of a request that was authenticated; an error is answered
	// with 403. Nil: no tenant. A header that anybody can set says nothing.
	Tenant func(*http.Request) (string, error)
	// Extensions go with all that the request raises, such as the user's id. Nil: none.
	Extensions func(*http.Request) map[string]string
	// TrustTrace goes on with the caller's traceparent, unless the request's context has a
	// span. Otherwise the caller's is not taken over.
	TrustTrace bool
}

// Handler puts a request's origin into its context. The correlation is that of the header
// X-Correlation-ID, if it has 1 to 128 visible ASCII characters, otherwise a new one; the
// answer has it, too.
func (o Origin) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := domain.Origin{CorrelationID: correlation(r)}
		w.Header().Set(correlationHeader, origin.CorrelationID)
		if o.Tenant != nil {
			tenant, err := o.Tenant(r)
			if err != nil {
				problem(w, http.StatusForbidden, err.Error())
				return
			}
			origin.TenantID = tenant
		}
		if o.Extensions != nil {
			origin.Extensions = o.Extensions(r)
		}
		if o.TrustTrace {
			origin.Traceparent = r.Header.Get("Traceparent")
		}
		next.ServeHTTP(w, r.WithContext(domain.WithOrigin(r.Context(), origin)))
	})
}

func correlation(r *http.Request) string {
	id := r.Header.Get(correlationHeader)
	invisible := func(c rune) bool { return c <= ' ' || c > '~' }
	if id == "" || len(id) > maxCorrelation || strings.ContainsFunc(id, invisible) {
		return uuid.Must(uuid.NewV7()).String()
	}
	return id
}

// Errors are the application's own errors and their status codes, as errors.Is finds
// them.
type Errors map[error]int

// API answers requests of one context.
type API struct {
	Commands *command.Handlers // Required by Command.
	Errors   Errors
	// MaxBytes is the largest body. Defaults to 1 MiB.
	MaxBytes int64
	// Logger gets what problems of status 500 and 503 don't say. Defaults to slog.Default().
	Logger *slog.Logger
}

// Command handles a command that is the request's JSON body, if it has one, completed by
// fill, which may be nil. What is no JSON object of C's fields is answered with 400. The
// header Idempotency-Key is its [command.Once], If-Match its [command.IfVersion]. The
// answer is 204, or 200 with the result of a handler made by [command.Returns].
func Command[C any](api API, fill func(*http.Request, *C)) http.Handler {
	if api.Commands == nil {
		panic(errors.New("web.Command: API.Commands is missing: give it what command.New returned"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var c C
		if status, err := api.decode(w, r, &c); err != nil {
			problem(w, status, err.Error())
			return
		}
		options, err := Options(r)
		if err != nil {
			problem(w, http.StatusBadRequest, err.Error())
			return
		}
		if fill != nil {
			fill(r, &c)
		}
		answer, err := api.Commands.Answer(r.Context(), c, options...)
		switch {
		case err != nil:
			api.Problem(w, r, err)
		case answer == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			write(w, http.StatusOK, "application/json", answer)
		}
	})
}

// decode reads a body, if there is one.
func (api API) decode(w http.ResponseWriter, r *http.Request, into any) (status int, err error) {
	limit := cmp.Or(api.MaxBytes, defaultMaxBytes)
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
	d.DisallowUnknownFields()
	err = d.Decode(&into)
	if errors.Is(err, io.EOF) {
		return 0, nil
	}
	if err == nil && into == nil {
		err = errors.New("it is null")
	}
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more behind the JSON object")
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", limit)
	}
	if err != nil {
		return http.StatusBadRequest, fmt.Errorf("the body is not what is expected: %w", err)
	}
	return 0, nil
}

// Options are the command options of a request: of its headers Idempotency-Key and
// If-Match, which is a version as [API.JSON] gives it, or *.
func Options(r *http.Request) ([]command.Option, error) {
	var all []command.Option
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		if problem := dbtext.KeyProblem(key); problem != "" {
			return nil, fmt.Errorf("Idempotency-Key %.60q %s", key, problem)
		}
		all = append(all, command.Once(key))
	}
	match := r.Header.Get("If-Match")
	if match == "" || match == "*" {
		return all, nil
	}
	version, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(match, "W/"), `"`), 10, 64)
	if err != nil || version < 1 {
		return nil, fmt.Errorf("If-Match is %q: it has to be the version that an ETag gave, as in %q, and only one", match, `"7"`)
	}
	return append(all, command.IfVersion(version)), nil
}

// JSON answers with v, or with the problem that err is; with 204 where v is nil, as there is
// nothing to say. An aggregate's version is its ETag, and a request with that in If-None-Match
// is answered with 304. What an aggregate shows is its exported fields, so that its id is not
// among them unless it has a field for it.
func (api API) JSON(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		api.Problem(w, r, err)
		return
	}
	if v == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	body, err := json.Marshal(v)
	if err != nil {
		api.Problem(w, r, fmt.Errorf("web: the answer can't be encoded: %w", err))
		return
	}
	if a, ok := v.(domain.AggregateRoot); ok {
		tag := strconv.Quote(strconv.FormatInt(a.Version(), 10))
		w.Header().Set("ETag", tag)
		for known := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
			if known = strings.TrimSpace(known); known == "*" || strings.TrimPrefix(known, "W/") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
	}
	write(w, http.StatusOK, "application/json", body)
}

func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went away
}
