package engine

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"strings"
)

// handler serves health and numbers. free says whose request came from this
// machine, for whom reading is free.
func (e *Engine) handler(free func(*http.Request) bool) http.Handler {
	routes := map[string]http.HandlerFunc{
		"/livez":      e.livez,
		"/readyz":     func(w http.ResponseWriter, r *http.Request) { e.readyz(w, r, free(r) || e.hasToken(r)) },
		"/api/outbox": e.private(free, e.outbox),
		"/metrics":    e.private(free, e.metrics),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, ok := routes[r.URL.Path]
		switch {
		case !ok:
			refuse(w, http.StatusNotFound, "there is nothing at "+r.URL.Path)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, r.Method+" is not possible here; use GET")
		default:
			route(w, r)
		}
	})
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
			w.Header().Set("WWW-Authenticate", `Bearer realm="waybill"`)
			refuse(w, http.StatusUnauthorized, "send the server's token as Authorization: Bearer …")
		}
	}
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
