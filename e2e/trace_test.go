package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A trace is drawn from a message: what it caused in another context, what was given up
// and why, with ways to each; the arrows go along it, and it fits on a phone. A reader
// sees it, too, and not whose it is.
func TestObservatory_ATraceIsDrawn(t *testing.T) {
	s := start(t)
	s.place(refusedOrder)
	s.place(failingOrder)
	b := open(t)
	b.scheme("light")
	b.open(s, "#/messages?status=abandoned")
	b.click(`tbody a[href^="#/messages/"]`)
	b.click(`main a[href^="#/traces?message="]`)
	b.shows("h1", "Trace")
	b.holds(`document.querySelectorAll('.trace > li > .traced[data-state="abandoned"][aria-current]').length === 1`)
	b.shows(".traced[aria-current]", "the partner refuses this message")
	b.shows(".traced[aria-current]", "handled by shipping")
	b.shows(".trace li li .traced", "Shipping.ShipmentPrepared.v1")
	b.shows("#trace-summary", "2 messages in 2 contexts and 1 database")
	b.holds(`document.querySelectorAll('.lines .edge.crossing:not(.tip)').length === 1`)
	b.holds(`(() => {
		const [from, to] = [...document.querySelectorAll('.traced')].map((e) => e.getBoundingClientRect());
		const line = document.querySelector('.lines .edge').getBoundingClientRect();
		return Math.abs(line.left - from.right) < 2 && Math.abs(line.right - to.left) < 8;
	})()`)
	b.picture("observatory-trace")
	b.do(focus(".traced"))
	b.press("\u0303") // the arrow to the right
	b.holds(`document.activeElement.dataset.context === 'shipping'`)
	b.size(390, 780)
	wide(b)
	b.scheme("dark")
	b.holds(`(() => {
		const [from, to] = [...document.querySelectorAll('.traced')].map((e) => e.getBoundingClientRect());
		return to.top > from.bottom;
	})()`)
	b.picture("observatory-trace-phone")
	b.size(1280, 860)

	b.press("4")
	b.click(`tbody a[href^="#/dead-letters/"]`)
	b.click(`main a[href^="#/traces?"]`)
	b.holds(`document.querySelector('.traced[data-state="parked"]')`)
	b.shows(".traced", "no address <img src=x⟨U+202E⟩ onerror")
	b.click(`.traced a[href^="#/dead-letters/"]`)
	b.shows("#letter-status", "parked")
	b.press("0")
	b.shows("main", "Give the correlation id")
	b.fill("#field-correlation", "nobody has this")
	b.press("\r")
	b.shows("main", "No message, timer or dead letter has this correlation id.")
	b.well()

	r := open(t)
	r.visit(s, "#/messages?status=abandoned")
	r.give(reading)
	r.click(`tbody a[href^="#/messages/"]`)
	r.click(`main a[href^="#/traces?message="]`)
	r.shows(".trace li li .traced", "Shipping.ShipmentPrepared.v1")
	require.NotContains(t, r.text("main"), refusedOrder)
	require.NotContains(t, r.text("main"), "the partner refuses this message")
	r.well()
}
