package engine

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/operate"
)

// access says who may use a route.
type access int

const (
	anyone    access = iota // probes, and the page without its data
	readers                 // with a token or, where there is none, from this machine
	operators               // with a token of role operate only: who acts, or asks for what is content by its name
)

// visitor is who a request is from.
type visitor struct {
	name    string // of the token; "": it had none and needed none
	operate bool
}

// content says whether one sees what messages carry or brought about.
func (v visitor) content() bool { return v.operate }

// actor is who did something, for the record: whose token it was, which is known,
// and who that says to be, which is not.
func (v visitor) actor(claimed string) string {
	if claimed == "" {
		return ""
	}
	return v.name + ": " + claimed
}

// checkActor says what keeps whoever asks from being on record.
func checkActor(r *http.Request, claimed string, dryRun bool) error {
	if claimed == "" && !dryRun {
		return badRequest("actor is missing: say who asks, for the record")
	}
	if problem := operate.ActorProblem(visitorOf(r).actor(claimed)); problem != "" {
		return badRequest("actor %s", problem)
	}
	return nil
}

type visitorKey struct{}

// visitorOf is who the handler of a route was let in for.
func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// refusal is why somebody is not let in.
type refusal struct {
	status int
	reason string // a value of the metric's label
	text   string
	token  string // its name, if it has one
}

// What is refused, for the metric, which has all of them from the start.
const (
	crossSite  = "cross_site"
	wrongToken = "wrong_token"
	noToken    = "no_token"
	wrongRole  = "role"
	proxied    = "forwarded"
	notLocal   = "not_local"
	actionsOff = "actions_off"
)

var refusalReasons = []string{crossSite, wrongToken, noToken, wrongRole, proxied, notLocal, actionsOff}

// admit lets those in who may use a route, and tells its handler who it is.
func (e *Engine) admit(free func(*http.Request) bool, may access, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, no := e.judge(free, may, r)
		if no != nil {
			e.refuse(w, r, *no)
			return
		}
		next(w, r.WithContext(context.WithValue(r.Context(), visitorKey{}, v)))
	}
}

// judge says who a request is from, or why it is refused. A token that was sent
// counts wherever it comes from; without any token in the configuration, reading
// is free for those who are surely on this machine.
func (e *Engine) judge(free func(*http.Request) bool, may access, r *http.Request) (visitor, *refusal) {
	no := func(status int, reason, text string) (visitor, *refusal) {
		return visitor{}, &refusal{status: status, reason: reason, text: text}
	}
	if foreignPage(r) {
		return no(http.StatusForbidden, crossSite, "a page of another site asked for this; open it at its own address, and let a proxy before it pass Host on as it is")
	}
	if !e.keys.empty() {
		sent, has := bearer(r)
		key, ok := e.keys.find(sent)
		switch {
		case !has:
			return no(http.StatusUnauthorized, noToken, "send a token of the server as Authorization: Bearer …")
		case !ok:
			return no(http.StatusUnauthorized, wrongToken, "the server has no such token; send one of its own as Authorization: Bearer …")
		case may == operators && key.Role != RoleOperate:
			return visitor{}, &refusal{http.StatusForbidden, wrongRole, "token " + key.Name + " has role read, and this takes role operate", key.Name}
		}
		return visitor{name: key.Name, operate: key.Role == RoleOperate}, nil
	}
	switch {
	case may == operators && r.Method != http.MethodPost:
		return no(http.StatusForbidden, actionsOff, "this shows what messages brought; to see it, set server.token, and send it as Authorization: Bearer …")
	case may == operators:
		return no(http.StatusForbidden, actionsOff, "actions are off; to turn them on, set server.token, and send it as Authorization: Bearer …")
	case !free(r):
		return no(http.StatusForbidden, notLocal, "this can be read from the machine itself, under a name such as 127.0.0.1; for others, set server.token")
	case forwarded(r):
		return no(http.StatusForbidden, proxied, "a proxy passed this on, and whom it lets in is not known here; set server.token, and send it as Authorization: Bearer …")
	}
	return visitor{}, nil
}

// stillIn says whether the visitor of a request that lasts would be let in now.
func (e *Engine) stillIn(r *http.Request) bool {
	if e.keys.empty() {
		return true
	}
	sent, _ := bearer(r)
	key, ok := e.keys.find(sent)
	return ok && visitorOf(r) == visitor{name: key.Name, operate: key.Role == RoleOperate}
}

// bearer is the token that was sent. Of several nobody knows which one counts for
// whatever stands before this server.
func bearer(r *http.Request) (token string, has bool) {
	sent := r.Header.Values("Authorization")
	if len(sent) != 1 {
		return "", len(sent) > 1
	}
	scheme, token, _ := strings.Cut(sent[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true
	}
	return strings.TrimSpace(token), true
}

// bound judges by the address that the engine's own server listens on.
func bound(addr string) func(*http.Request) bool {
	return func(r *http.Request) bool { return isLoopback(addr) && isLoopback(r.Host) }
}

// connected judges by the address that the client connected to.
func connected(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && isLoopback(local.String()) && isLoopback(r.Host)
}

// foreignPage says whether a browser sends a request for a page that is not this
// server's. That needs no answer to do harm: it may load the databases. Browsers
// say so in Sec-Fetch-Site, older ones only in Origin; what is no browser sends
// neither.
func foreignPage(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site != "same-origin" && site != "none"
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	at, err := url.Parse(origin)
	return err != nil || at.Host != r.Host
}

// forwards are the headers by which proxies say that they are some.
var forwards = []string{
	"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip", "Client-Ip", "Cf-Connecting-Ip",
	"Fastly-Client-Ip", "Fly-Client-Ip", "Cdn-Loop", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context",
}

// forwarded says whether a request came through a proxy. One that says nothing,
// and names this machine as the host, can only be told by its age: nginx speaks
// HTTP/1.0 to what stands behind it unless it is told otherwise, and nobody else
// does any more.
func forwarded(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) {
		return true
	}
	for name := range r.Header {
		if slices.Contains(forwards, name) || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Original-") || strings.HasPrefix(name, "X-Envoy-") {
			return true
		}
	}
	return false
}

// refuse answers somebody who is not let in, counts it, and logs it now and then.
func (e *Engine) refuse(w http.ResponseWriter, r *http.Request, no refusal) {
	e.refusals.note(no, r)
	if no.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="waybill"`)
	}
	refuse(w, no.status, no.text)
}

// refusalsEvery is how often a reason is logged at most: whoever tries out tokens
// doesn't fill the disk.
const refusalsEvery = time.Minute

// refusals counts requests that were refused.
type refusals struct {
	log   *slog.Logger
	now   func() time.Time
	count map[string]*atomic.Int64 // by reason

	mu   sync.Mutex
	last map[string]time.Time
	told map[string]int64 // the count when it was last logged
}

func newRefusals(log *slog.Logger) *refusals {
	r := &refusals{log: log, now: time.Now, count: map[string]*atomic.Int64{}, last: map[string]time.Time{}, told: map[string]int64{}}
	for _, reason := range refusalReasons {
		r.count[reason] = new(atomic.Int64)
	}
	return r
}

func (f *refusals) note(no refusal, r *http.Request) {
	n := f.count[no.reason].Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.last[no.reason]) >= refusalsEvery {
		f.log.Warn("requests over HTTP are refused", "reason", no.reason, "count", n-f.told[no.reason],
			"method", r.Method, "path", cut(r.URL.Path), "from", r.RemoteAddr, "token", no.token)
		f.last[no.reason], f.told[no.reason] = now, n
	}
}

// cut keeps what a stranger sent from filling a line of the log.
func cut(s string) string { return s[:min(len(s), 128)] }
