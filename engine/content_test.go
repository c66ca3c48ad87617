package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
)

const person = "alice@example.org"

// personal is an engine in which everything that can has something personal in it:
// the texts of a broker's and a handler's errors, a panic's stack, keys.
func personal(t *testing.T, cfg func(*bench) Config) (*bench, *Engine) {
	t.Helper()
	b := setup(t)
	s := b.orders(func(_ context.Context, sold Sold) error {
		if sold.Amount == 1 {
			panic("no parcel for " + person)
		}
		return errors.New("no address of " + person)
	})
	s.MaxAttempts = 1
	c := cfg(b)
	c.Subscriptions = []subscription.Stream{s}
	e := b.start(c)
	b.partner.FailWhere(func(m broker.Message) error {
		return broker.Classify(broker.Permanent, fmt.Errorf("%s (%s) is refused", person, m.Key))
	})
	b.sell(2)
	eventually(t, func() bool {
		d := e.state(t.Context())
		failed := d.Outbox.Providers["default"]["partner"]
		letters := d.Subscriptions.Subscriptions["parcels"].DeadLetters
		codes := map[string]bool{}
		for _, r := range d.Health.Reasons {
			codes[r.Code] = true
		}
		return failed.LastError != nil && letters != nil && *letters == 2 && codes["rows_abandoned"] && codes["dead_letters"]
	})
	return b, e
}

// S13: error texts, stacks, keys, ids of streams and correlations are shown to tokens
// of role operate alone, in every answer; to the others are shown types, classes,
// counts and ids of messages.
// Conformance: U-18.
func TestAPI_S13_OnlyOperatorsSeeWhatMessagesBrought(t *testing.T) {
	_, e := personal(t, (*bench).staffed)
	var rows messagesReport
	var letters lettersReport
	fetch := func(path, token string, into any) string {
		w := askWith(e.Handler(), "GET", path, "", as(token))
		require.Equal(t, 200, w.Code, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), into))
		return w.Body.String()
	}
	fetch("/api/outbox/messages", operating, &rows)
	fetch("/api/dead-letters", operating, &letters)
	require.Len(t, letters.Letters, 2)
	row, letter := rows.Messages[0], letters.Letters[0]
	secrets := []string{person, row.Key, *row.CorrelationID, "[running]"}
	paths := []string{
		"/api/outbox", "/api/health", "/readyz", "/api/subscriptions", "/api/outbox/messages", "/api/outbox/messages/" + row.MessageID,
		"/api/dead-letters", "/api/dead-letters/" + letter.ID, "/api/partitions", "/metrics",
	}
	for _, path := range paths {
		text := askWith(e.Handler(), "GET", path, "", as(reading)).Body.String()
		for _, secret := range secrets {
			require.NotContains(t, text, secret, path)
		}
	}
	for _, path := range paths[:8] {
		require.Contains(t, askWith(e.Handler(), "GET", path, "", as(operating)).Body.String(), person, path)
	}

	fetch("/api/outbox/messages?status=abandoned", reading, &rows)
	require.Equal(t, "permanent", *rows.Messages[0].FailureClass)
	require.Contains(t, *rows.Messages[0].LastError, "a token of role operate shows it, and so does the waybill command")
	fetch("/api/dead-letters", reading, &letters)
	require.NotEmpty(t, letters.Letters[0].Reason)
	require.NotEmpty(t, letters.Letters[0].MessageID)

	for _, path := range []string{"/api/outbox/messages?error=alice", "/api/outbox/messages?key=a", "/api/outbox/messages?stream=a", "/api/outbox/messages?correlation=a", "/api/dead-letters?error=alice", "/api/dead-letters?key=a"} {
		w := askWith(e.Handler(), "GET", path, "", as(reading))
		require.Equal(t, 403, w.Code, "whether something is found would tell")
		require.Contains(t, w.Body.String(), "takes a token of role operate")
		require.Equal(t, 200, askWith(e.Handler(), "GET", path, "", as(operating)).Code)
	}
}

// S13: on this machine, without any token, none of it is shown either.
func TestAPI_S13_ReadingFreelyShowsNoContent(t *testing.T) {
	_, e := personal(t, (*bench).config)
	for _, path := range []string{"/api/outbox", "/api/health", "/readyz", "/api/subscriptions", "/api/outbox/messages", "/api/dead-letters"} {
		w := askWith(e.Handler(), "GET", path, "", nil)
		require.Equal(t, 200, w.Code)
		require.NotContains(t, w.Body.String(), person, path)
		require.NotContains(t, w.Body.String(), "[running]", path)
	}
	l := listen(t, e)
	plain, ok := l.next()
	require.True(t, ok)
	text, err := json.Marshal(plain)
	require.NoError(t, err)
	require.NotContains(t, string(text), person)
	require.NotEmpty(t, plain.Health.Reasons)
}

// S13: the stream shows to each who listens what that one may see.
func TestStream_S13_ToEachWhatItMaySee(t *testing.T) {
	_, e := personal(t, (*bench).staffed)
	for token, sees := range map[string]bool{reading: false, operating: true} {
		s, ok := listenAs(t, e, token).next()
		require.True(t, ok)
		text, err := json.Marshal(s)
		require.NoError(t, err)
		require.Equal(t, sees, strings.Contains(string(text), person))
	}
}

// S13: what a broker says that doesn't answer is about no row, and whoever may read
// is told.
func TestAPI_S13_AnOutageIsToldToAllReaders(t *testing.T) {
	b := setup(t)
	e := b.start(b.config())
	b.partner.SetOutage(true)
	b.sell(1)
	var report outboxReport
	eventually(t, func() bool {
		require.Equal(t, 200, get(t, e, "/api/outbox", &report))
		return *report.Providers["default"]["partner"].Breaker != "closed"
	})
	require.Contains(t, *report.Providers["default"]["partner"].LastError, "the broker is down")
	var d diagnosis
	require.Equal(t, 200, get(t, e, "/api/health", &d))
	require.Contains(t, d.Summary, "the broker is down")
}

// S13: a field is redacted by its name or the end of its path, in any spelling, also
// in lists, and so is a header.
func TestRedaction_S13_NamesAndPaths(t *testing.T) {
	r := newRedaction([]string{"card_number", "customer.EMail", "X-Tenant"})
	var body any
	require.NoError(t, json.Unmarshal([]byte(`{
		"CardNumber": 1, "card-number": {"a": 1}, "number": 2, "email": "a", "xtenant": "b", "customer.email": "c",
		"customer": {"email": "d", "Email": "e", "name": "f"}, "data": {"CUSTOMER": [[{"e-mail": "g"}], {"emails": ["h"]}], "other": {"email": "i"}},
		"cards": [{"cardNumber": ["j"]}, "cardNumber"]}`), &body))
	text, err := json.Marshal(r.value(body))
	require.NoError(t, err)
	require.JSONEq(t, `{
		"CardNumber": "[redacted]", "card-number": "[redacted]", "number": 2, "email": "a", "xtenant": "[redacted]", "customer.email": "[redacted]",
		"customer": {"email": "[redacted]", "Email": "[redacted]", "name": "f"}, "data": {"CUSTOMER": [[{"e-mail": "[redacted]"}], {"emails": ["h"]}], "other": {"email": "i"}},
		"cards": [{"cardNumber": "[redacted]"}, "cardNumber"]}`, string(text))
	require.Equal(t, map[string]string{"x-tenant": "[redacted]", "X-CARD-NUMBER": "1", "Card-Number": "[redacted]", "id": "2"},
		r.headers(map[string]string{"x-tenant": "a", "X-CARD-NUMBER": "1", "Card-Number": "3", "id": "2"}))
}
