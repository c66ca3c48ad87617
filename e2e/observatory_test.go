package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An operator sees that something is wrong, finds the message that the partner
// refused and the one that shipping could not handle, and brings both to their end.
func TestObservatory_RetryAndReplay(t *testing.T) {
	s := start(t)
	for _, number := range []string{"order-1", "order-2", refusedOrder, failingOrder, "order-3"} {
		s.place(number)
	}
	b := open(t)
	b.open(s, "")
	b.shows(`[data-card="abandoned"] dd`, "1")
	b.shows(`[data-card="dead"] dd`, "1")
	b.holds(`document.querySelectorAll('.chart canvas').length === 5`)

	b.click(`[data-card="abandoned"] a`)
	b.holds(`document.querySelectorAll('tbody tr').length === 1`)
	require.Contains(t, b.text("tbody"), "the partner refuses this message")
	b.click(`tbody a[href^="#/messages/"]`)
	b.holds(`document.querySelector('.step[data-state="abandoned"]')`)
	b.picture("observatory-message")

	s.heal()
	b.click(`button[data-action="retry"]`)
	b.shows(".outcome", "1 row would be due again.")
	require.Empty(t, s.published(refusedOrder), "that was a look only")
	b.fill("#actor", "operator")
	b.picture("observatory-retry")
	b.click("#confirm")
	b.shows(".outcome", "1 row was due again.")
	b.click("#cancel")
	b.holds(`document.querySelectorAll('.journey .step[data-state="abandoned"]').length === 0`)
	b.shows(".journey", "Handled by shipping")
	require.Len(t, s.published(refusedOrder), 1)
	b.shows("#payload", `"order_id": "`+refusedOrder+`"`)
	b.shows("#payload", fmt.Sprintf(`"total": %d`, int64(cents)))

	b.press("4") // dead letters
	b.shows("#total", "1 message found.")
	require.Contains(t, b.text("tbody"), "<img src=x", "text stays text")
	b.click(`tbody a[href^="#/dead-letters/"]`)
	b.shows("#letter-status", "parked")
	b.click(`button[data-action="replay"]`)
	b.shows(".outcome", "1 message would be marked for replay.")
	b.click("#confirm")
	b.shows(".outcome", "On record as action")
	b.press("\x1b")
	b.shows("#letter-status", "replayed")
	require.EqualValues(t, 1, s.handled.Load())

	b.press("1")
	b.shows(`[data-card="abandoned"] dd`, "0")
	b.shows(`[data-card="dead"] dd`, "0")
	b.well()
}

// While a broker is away, the page says which lane stands still, who doesn't reach the
// broker, what it said and what helps; no row fails.
func TestObservatory_AnOutageInPlainWords(t *testing.T) {
	s := start(t)
	s.away.Store(true)
	s.place("order-1")
	b := open(t)
	b.open(s, "")
	b.shows(".reasons", "broker partner accepts nothing (connection refused); rows wait and use up no attempts; since")
	b.shows(".reasons", "Check that it runs, its address, its login and its permissions.")
	b.shows(`[data-card="failed"] dd`, "0")
	b.picture("outage-overview")
	b.press("2") // lanes
	b.shows("tbody", "1 sick")
	b.shows("tbody", "one row at a time")
	b.shows("tbody", "connection refused")
	b.picture("outage-lanes")
	s.away.Store(false)
	b.shows("#line", "healthy")
	require.Len(t, s.published("order-1"), 1)
	b.well()
}

// S2: without a token nothing is shown but that it is missing; the page asks for it,
// and again after one that is wrong.
func TestObservatory_S2_AsksForTheToken(t *testing.T) {
	s := start(t)
	b := open(t)
	b.visit(s, "#/lanes")
	b.shows("dialog", "The server requires a token.")
	b.press("\x1b")
	b.shows("#line", "no access")
	require.NotContains(t, b.text("body"), "default / partner")
	b.holds(`!document.querySelector('dialog')`) // its input has the same name as the next one's
	b.press("k")
	b.holds(`document.getElementById('token-input')`)
	b.fill("#token-input", "not the one that it is")
	b.press("\r")
	b.shows("dialog", "The server does not accept this token.")
	b.give(token)
	b.shows("tbody", "default / partner")
	b.shows("#connection", "by stream")
	b.well()
}

// S7, S13: with a token of role read one sees how everything is, and neither what
// messages brought, nor can one act.
func TestObservatory_S7_S13_AReader(t *testing.T) {
	s := start(t)
	s.place(refusedOrder)
	s.place(failingOrder)
	b := open(t)
	b.visit(s, "")
	b.give(reading)
	b.shows(`[data-card="abandoned"] dd`, "1")
	b.shows(`[data-card="dead"] dd`, "1")
	b.click(`[data-card="abandoned"] a`)
	b.shows("tbody", "[hidden]")
	b.shows("tbody", "permanent")
	b.click(`tbody a[href^="#/messages/"]`)
	b.shows("main", "payloads are shown to those only who send a token of role operate")
	for _, secret := range []string{refusedOrder, "the partner refuses this message"} {
		require.NotContains(t, b.text("body"), secret)
	}
	b.click(`button[data-action="retry"]`)
	b.shows("dialog", "token reader has role read, and this takes role operate")
	b.press("\x1b")
	b.press("4")
	b.shows("#total", "1 message found.")
	require.NotContains(t, b.text("body"), "no address")
	b.well()
}

// Whoever looks sees that the connection is lost, and needs to do nothing when it
// is back.
func TestObservatory_ConnectionIsLostAndComesBack(t *testing.T) {
	s := start(t)
	b := open(t)
	b.open(s, "#/lanes")
	b.shows("tbody", "default / partner")
	s.stop()
	b.shows("#line", "no connection")
	s.listen(s.addr)
	b.holds(`document.getElementById('line').dataset.state !== 'lost'`)
	b.shows("#connection", "by stream")
	b.well()
}

// Where a proxy lets no stream through, the page asks again and again.
func TestObservatory_PollsWhereNothingStreams(t *testing.T) {
	s := start(t)
	s.stop()
	engine := s.handler
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/stream" {
			http.Error(w, "no streams here", http.StatusBadGateway)
			return
		}
		engine.ServeHTTP(w, r)
	})
	s.listen(s.addr)
	b := open(t)
	b.open(s, "")
	b.shows("#connection", "by polling")
	b.shows("#line", "healthy")
	s.place(refusedOrder)
	b.shows(`[data-card="abandoned"] dd`, "1")
	b.well()
}

func TestObservatory_Keyboard(t *testing.T) {
	s := start(t)
	b := open(t)
	b.open(s, "")
	for key, title := range map[string]string{"2": "Lanes", "3": "Messages", "4": "Dead letters", "5": "Partitions and processes", "6": "Waiting timers", "7": "Commands", "8": "Processes", "9": "Projections", "0": "Trace", "1": "Overview"} {
		b.press(key)
		b.shows("h1", title)
	}
	b.press("3")
	b.shows("h1", "Messages")
	b.press("/")
	b.holds(`document.activeElement.id === 'field-message'`)
	b.press("2")
	b.holds(`document.activeElement.value.endsWith('2')`)
	b.holds(`location.hash === '#/messages'`)
	b.do(blur)
	b.press("?")
	b.shows("dialog", "Keyboard shortcuts")
	b.press("\x1b")
	b.holds(`!document.querySelector('dialog')`)
	b.press("t")
	b.holds(`document.documentElement.dataset.theme === 'dark'`)
	b.well()
}

// Pictures for the guide: light, dark, and as wide as a phone.
func TestObservatory_Pictures(t *testing.T) {
	s := start(t)
	b := open(t)
	b.scheme("light")
	b.open(s, "")
	s.place(refusedOrder)
	s.place(failingOrder)
	s.load(14 * time.Second)
	s.partner.SetOutage(true)
	s.load(8 * time.Second)
	b.shows(`[data-card="dead"] dd`, "1")
	b.shows("#line", "degraded")
	b.picture("observatory-overview")
	wide(b)
	b.scheme("dark")
	b.press("2")
	b.shows("tbody", "default / partner")
	b.picture("observatory-lanes-dark")
	b.press("5")
	b.shows("main", "default / partner")
	wide(b)
	b.size(390, 780)
	b.scheme("light")
	b.press("4")
	b.shows("#total", "1 message found.")
	wide(b)
	b.picture("observatory-phone")
	for _, key := range []string{"1", "2", "3", "5", "6", "7", "9", "0"} {
		b.press(key)
		wide(b)
	}
	b.well()
}

// wide holds that nothing is wider than the window.
func wide(b *browser) {
	b.t.Helper()
	b.holds(`document.documentElement.scrollWidth <= innerWidth`)
}
