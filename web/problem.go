package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"regexp"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// retryAfter is when a client may ask again, in seconds.
const retryAfter = "1"

// Problem answers with an error as application/problem+json (RFC 9457). As Errors says,
// and otherwise:
//
//	404  *repository.NotFoundError
//	409  *uow.ConflictError, *repository.TakenError, a refusal by command.Refuse
//	412  *repository.PreconditionError
//	413  *outbox.TooLargeError
//	422  *uow.InvalidError, *command.KeyReusedError
//	503  *uow.CommitUnknownError, *projection.BehindError, a database that is away or takes no writes; with Retry-After
//	504  *command.ExpiredError
//
// The text is the error's, without the names of this module's packages that it begins with.
// What is left is 500. Answers of 500 and 503 are without the text, which is logged with the
// correlation id.
func (api API) Problem(w http.ResponseWriter, r *http.Request, err error) {
	status := api.status(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	if status >= http.StatusInternalServerError && status != http.StatusGatewayTimeout {
		cmp.Or(api.Logger, slog.Default()).ErrorContext(r.Context(), "a request failed", "method", r.Method, "path", r.URL.Path,
			"correlation_id", domain.OriginFrom(r.Context()).CorrelationID, "status", status, "error", err)
		problem(w, status, "")
		return
	}
	problem(w, status, ours.ReplaceAllString(err.Error(), "$1"))
}

// ours are the names of packages that errors begin with: they tell a client nothing.
var ours = regexp.MustCompile(`(^|: )(?:(?:uow|repository|outbox|command|domain): )+`)

func (api API) status(err error) int {
	for own, status := range api.Errors {
		if errors.Is(err, own) {
			return status
		}
	}
	for _, known := range []struct {
		is     bool
		status int
	}{
		{is[*uow.CommitUnknownError](err), http.StatusServiceUnavailable}, // It wraps others.
		{is[*repository.NotFoundError](err), http.StatusNotFound},
		{is[*uow.ConflictError](err), http.StatusConflict},
		{is[*repository.TakenError](err), http.StatusConflict},
		{is[*repository.PreconditionError](err), http.StatusPreconditionFailed},
		{is[*outbox.TooLargeError](err), http.StatusRequestEntityTooLarge},
		{is[*uow.InvalidError](err), http.StatusUnprocessableEntity},
		{is[*command.KeyReusedError](err), http.StatusUnprocessableEntity},
		{is[*command.ExpiredError](err), http.StatusGatewayTimeout},
		{is[*projection.BehindError](err), http.StatusServiceUnavailable},
		{command.Refused(err), http.StatusConflict},
		{dberr.Away(err) || dberr.Unfit(err), http.StatusServiceUnavailable},
	} {
		if known.is {
			return known.status
		}
	}
	return http.StatusInternalServerError
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// problem writes what is wrong; detail is for people.
func problem(w http.ResponseWriter, status int, detail string) {
	body, _ := json.Marshal(struct { //nolint:errchkjson // texts and a number
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{http.StatusText(status), status, detail})
	write(w, status, "application/problem+json", body)
}
