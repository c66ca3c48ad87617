package engine

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/engine/observatory"
	"github.com/waybill-go/waybill/outbox"
)

// access says who may use a route.
type access int

const (
	anyone    access = iota // probes, and the page without its data
	readers                 // from this machine, or with the token
	operators               // with the token only
)

// route is one method of one path, which is a pattern of http.ServeMux without
// method.
type route struct {
	method, path string
	may          access
	handle       http.HandlerFunc
}

// routes are all that the engine serves. free says whose request came from this
// machine, for whom reading is free.
func (e *Engine) routes(free func(*http.Request) bool) []route {
	page := observatory.Handler().ServeHTTP
	return []route{
		{http.MethodGet, "/{$}", anyone, page},
		{http.MethodGet, "/assets/", anyone, page},
		{http.MethodGet, "/livez", anyone, e.livez},
		{http.MethodGet, "/readyz", anyone, func(w http.ResponseWriter, r *http.Request) { e.readyz(w, r, free(r) || e.hasToken(r)) }},
		{http.MethodGet, "/metrics", readers, e.metrics},
		{http.MethodGet, "/api/outbox", readers, e.answer(queryTimeout, e.outbox)},
		{http.MethodGet, "/api/health", readers, e.answer(queryTimeout, e.apiHealth)},
		{http.MethodGet, "/api/stream", readers, e.stream},
		{http.MethodGet, "/api/outbox/messages", readers, e.answer(queryTimeout, e.messages)},
		{http.MethodGet, "/api/outbox/messages/{message_id}", readers, e.answer(queryTimeout, e.message)},
		{http.MethodPost, "/api/outbox/messages/retry", operators, e.answer(changeTimeout, e.changeMessages(outbox.VerbRetry))},
		{http.MethodPost, "/api/outbox/messages/abandon", operators, e.answer(changeTimeout, e.changeMessages(outbox.VerbAbandon))},
		{http.MethodPost, "/api/outbox/messages/skip", operators, e.answer(changeTimeout, e.changeMessages(outbox.VerbSkip))},
		{http.MethodGet, "/api/partitions", readers, e.answer(queryTimeout, e.partitions)},
		{http.MethodGet, "/api/subscriptions", readers, e.answer(queryTimeout, e.subscriptions)},
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
		switch r.may {
		case readers:
			r.handle = e.private(free, r.handle)
		case operators:
			r.handle = e.guarded(r.handle)
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

// bound judges by the address that the engine's own server listens on. A proxy
// beside a server that others can reach connects from this machine, too.
func bound(addr string) func(*http.Request) bool {
	return func(r *http.Request) bool { return isLoopback(addr) && isLoopback(r.Host) }
}

// connected judges by the address that the client connected to.
func connected(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && isLoopback(local.String()) && isLoopback(r.Host)
}

// private lets those read who may: from this machine, or with the token. That
// the Host header must be this machine's, too, keeps a web page that made its
// own name point here from reading through a visitor's browser.
func (e *Engine) private(free func(*http.Request) bool, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case free(r) || e.hasToken(r):
			next(w, r)
		case e.cfg.Server.Token == "":
			refuse(w, http.StatusForbidden, "this can be read from the machine itself, under a name such as 127.0.0.1; for others, set server.token")
		default:
			unauthorized(w)
		}
	}
}

// guarded lets those with the token in, wherever they are. Whatever a visitor's
// browser sends by itself has none.
func (e *Engine) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case e.hasToken(r):
			next(w, r)
		case e.cfg.Server.Token == "":
			refuse(w, http.StatusForbidden, "actions are off; to turn them on, set server.token, and send it as Authorization: Bearer …")
		default:
			unauthorized(w)
		}
	}
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="waybill"`)
	refuse(w, http.StatusUnauthorized, "send the server's token as Authorization: Bearer …")
}

// hasToken compares in a time that tells nothing about the token, nor its length.
func (e *Engine) hasToken(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	want, got := sha256.Sum256([]byte(e.cfg.Server.Token)), sha256.Sum256([]byte(strings.TrimSpace(token)))
	return e.cfg.Server.Token != "" && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(want[:], got[:]) == 1
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
