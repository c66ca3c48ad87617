package engine

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/engine/observatory"
	"github.com/waybill-go/waybill/outbox"
)

// route is one method of one path, which is a pattern of http.ServeMux without
// method.
type route struct {
	method, path string
	may          access
	handle       http.HandlerFunc
}

// routes are all that the engine serves. free says whose request came from this
// machine, for whom reading is free where there is no token.
func (e *Engine) routes(free func(*http.Request) bool) []route {
	page := observatory.Handler().ServeHTTP
	return []route{
		{http.MethodGet, "/{$}", anyone, page},
		{http.MethodGet, "/assets/", anyone, page},
		{http.MethodGet, "/livez", anyone, e.livez},
		{http.MethodGet, "/readyz", anyone, func(w http.ResponseWriter, r *http.Request) { e.readyz(w, r, free) }},
		{http.MethodGet, "/metrics", readers, e.metrics},
		{http.MethodGet, "/api/outbox", readers, e.answer(queryTimeout, e.outbox)},
		{http.MethodGet, "/api/health", readers, e.answer(queryTimeout, e.apiHealth)},
		{http.MethodGet, "/api/stream", readers, e.stream},
		{http.MethodGet, "/api/outbox/messages", readers, e.answer(queryTimeout, e.messages)},
		{http.MethodGet, "/api/outbox/messages/{message_id}", readers, e.answer(queryTimeout, e.message)},
		{http.MethodGet, "/api/outbox/messages/{message_id}/trace", readers, e.answer(queryTimeout, e.traceOfMessage)},
		{http.MethodGet, "/api/traces/{correlation_id}", operators, e.answer(queryTimeout, e.trace)},
		{http.MethodPost, "/api/outbox/messages/retry", operators, e.answer(changeTimeout, e.changeMessages(outbox.VerbRetry))},
		{http.MethodPost, "/api/outbox/messages/abandon", operators, e.answer(changeTimeout, e.changeMessages(outbox.VerbAbandon))},
		{http.MethodPost, "/api/outbox/messages/skip", operators, e.answer(changeTimeout, e.changeMessages(outbox.VerbSkip))},
		{http.MethodGet, "/api/commands", readers, e.answer(queryTimeout, e.commands)},
		{http.MethodGet, "/api/timers", readers, e.answer(queryTimeout, e.timers)},
		{http.MethodGet, "/api/processes", readers, e.answer(queryTimeout, e.listProcesses)},
		{http.MethodGet, "/api/processes/{process}/{id}", operators, e.answer(queryTimeout, e.showProcess)},
		{http.MethodGet, "/api/projections", readers, e.answer(queryTimeout, e.listProjections)},
		{http.MethodGet, "/api/partitions", readers, e.answer(queryTimeout, e.partitions)},
		{http.MethodGet, "/api/subscriptions", readers, e.answer(queryTimeout, e.subscriptions)},
		{http.MethodGet, "/api/subscriptions/known", readers, e.answer(queryTimeout, e.knownSubscriptions)},
		{http.MethodGet, "/api/dead-letters", readers, e.answer(queryTimeout, e.letters)},
		{http.MethodGet, "/api/dead-letters/{id}", readers, e.answer(queryTimeout, e.letter)},
		{http.MethodPost, "/api/dead-letters/replay", operators, e.answer(changeTimeout, e.replay)},
		{http.MethodPost, "/api/dead-letters/discard", operators, e.answer(changeTimeout, e.discard)},
		{http.MethodGet, "/openapi.json", anyone, openAPI},
	}
}

// handler serves the routes, and whatever else there is not as JSON, too.
func (e *Engine) handler(free func(*http.Request) bool) http.Handler {
	paths := map[string]methods{}
	for _, r := range e.routes(free) {
		if paths[r.path] == nil {
			paths[r.path] = methods{}
		}
		if r.may != anyone {
			r.handle = e.admit(free, r.may, r.handle)
		}
		paths[r.path][r.method] = r.handle
	}
	mux := http.NewServeMux()
	for path, m := range paths {
		mux.Handle(path, m)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "there is nothing at "+r.URL.Path)
	})
	return mux
}

// methods are those of one path. The mux would refuse the others in plain text.
type methods map[string]http.HandlerFunc

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handle, ok := m[r.Method]
	if r.Method == http.MethodHead {
		handle, ok = m[http.MethodGet]
	}
	if ok {
		handle(w, r)
		return
	}
	allowed := slices.Sorted(maps.Keys(m))
	if m[http.MethodGet] != nil {
		allowed = append(allowed, http.MethodHead)
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	refuse(w, http.StatusMethodNotAllowed, r.Method+" is not possible here; use "+strings.Join(allowed, " or "))
}

func refuse(w http.ResponseWriter, status int, text string) {
	reply(w, status, map[string]string{"error": text})
}

func reply(w http.ResponseWriter, status int, body any) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error": "the answer can't be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	secure(w.Header())
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// secure keeps what only some may read out of caches.
func secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}
