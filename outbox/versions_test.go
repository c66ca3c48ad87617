package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

type (
	OrderPriced   struct{ Cents int }
	OrderPricedV1 struct{ Euros int }
)

func pricing(t *testing.T, more ...domain.EventOption) *domain.Domain {
	t.Helper()
	d, err := domain.New("ordering", domain.Aggregate[*writerOrder]("order", domain.Event[NoteAdded](), domain.Event[OrderCancelled](domain.Published()),
		domain.Event[OrderPriced](append(more, domain.Published(), domain.Version(2), domain.Upcast(1, func(e OrderPricedV1) OrderPriced { return OrderPriced{e.Euros * 100} }))...)))
	require.NoError(t, err)
	return d
}

var oldPrice = domain.Downcast(2, func(e OrderPriced) OrderPricedV1 { return OrderPricedV1{e.Cents / 100} })

func priced(version, data string) Event {
	e := fullEvent()
	e.Type, e.Data = "Ordering.OrderPriced.v"+version, []byte(data)
	return e
}

// N3: a target gets the version that it was promised, in each envelope, and no other;
// who was promised none, and the context itself, get what is written.
func TestRows_N3_VersionsOfTargets(t *testing.T) {
	one := map[string]int{"OrderPriced": 1}
	w := Writer{Domain: pricing(t, oldPrice), Internal: "default", External: []Target{
		{Broker: "a", Versions: one},
		{Broker: "b"},
		{Broker: "c", Versions: one, Envelope: CloudEvents},
		{Broker: "d", Versions: one},
		{Broker: "e", Versions: one, Envelope: CloudEventsBinary},
	}}
	rows, err := w.Rows([]Event{priced("2", `{"Cents":500}`)}, 64)
	require.NoError(t, err)
	require.Equal(t, []string{
		"Ordering.OrderPriced.v2 to default", "Ordering.OrderPriced.v1 to a", "Ordering.OrderPriced.v2 to b", "Ordering.OrderPriced.v1 to c",
		"Ordering.OrderPriced.v1 to d", "Ordering.OrderPriced.v1 to e",
	}, targetsOf(rows))
	for i, want := range []string{`{"Cents":500}`, `{"Euros":5}`, `{"Cents":500}`, "", `{"Euros":5}`} {
		if want == "" {
			continue
		}
		meta, data, err := ParseEnvelope(rows[i].Payload)
		require.NoError(t, err)
		require.Equal(t, rows[i].MessageType, meta.Type)
		require.Equal(t, want, string(data))
	}
	require.Same(t, &rows[1].Payload[0], &rows[4].Payload[0], "it is made once")
	require.Contains(t, string(rows[3].Payload), `"type":"Ordering.OrderPriced.v1"`)
	require.Contains(t, string(rows[3].Payload), `"data":{"Euros":5}`)
	require.JSONEq(t, `{"Euros":5}`, string(rows[5].Payload))
	require.Contains(t, rows[5].CloudEvent, `"Ordering.OrderPriced.v1"`)

	// A build that writes the old version anyway: the bytes are the same ones.
	w.Domain = pricing(t, oldPrice, domain.WriteVersion(1))
	rows, err = w.Rows([]Event{priced("1", `{"Euros":5}`)}, 64)
	require.NoError(t, err)
	require.Equal(t, "Ordering.OrderPriced.v1 to default", targetsOf(rows)[0])
	require.Same(t, &rows[1].Payload[0], &rows[4].Payload[0], "once more")
}

// N3: what a back-fill copies is in the version that the target gets from then on.
func TestBackfill_N3_VersionsOfTargets(t *testing.T) {
	b := Backfill{Context: "ordering", Target: Target{Broker: "a", Versions: map[string]int{"OrderPriced": 1}}, Published: []string{"OrderPriced"}}
	stored := func(e Event) []byte { return appendInternal(nil, &e, []byte("{}")) }
	_, err := b.Copy("default", "Ordering.OrderPriced.v2", "k", stored(priced("2", `{"Cents":500}`)), 64)
	require.ErrorContains(t, err, "goes to broker a in version 1, and only a program that declares the event can make that: use engine.Backfill or engine.RepublishHistory")
	row, err := b.Copy("default", "Ordering.OrderPriced.v1", "k", stored(priced("1", `{"Euros":5}`)), 64)
	require.NoError(t, err, "nothing has to be made")
	require.Equal(t, "Ordering.OrderPriced.v1", row.MessageType)

	b.Domain = pricing(t, oldPrice, domain.Alias("Ordering.OrderTaxed"))
	for _, name := range []string{"Ordering.OrderPriced.v2", "Ordering.OrderTaxed.v2"} {
		e := priced("2", `{"Cents":500}`)
		e.Type = name
		row, err = b.Copy("default", name, "k", stored(e), 64)
		require.NoError(t, err)
		require.Equal(t, "Ordering.OrderPriced.v1", row.MessageType)
		_, data, err := ParseEnvelope(row.Payload)
		require.NoError(t, err)
		require.Equal(t, `{"Euros":5}`, string(data))
	}
}

func TestTarget_N3_VersionsThatDoNotFit(t *testing.T) {
	d := pricing(t)
	for want, target := range map[string]Target{
		`versions names "Priced", which is no published event of context ordering: name one of ["OrderCancelled" "OrderPriced"]`:                                    {Versions: map[string]int{"Priced": 1}},
		`versions names "NoteAdded", which is no published event`:                                                                                                   {Versions: map[string]int{"NoteAdded": 1}},
		`versions names "OrderCancelled", which events leaves out: take one of them out`:                                                                            {Versions: map[string]int{"OrderCancelled": 1}, Events: []string{"OrderPriced"}},
		`versions has 3 for "OrderPriced", which is written in version 2: name one that is older`:                                                                   {Versions: map[string]int{"OrderPriced": 3}},
		`versions has 1 for "OrderPriced", which is written in version 2, and nothing makes one of the other: declare domain.Downcast for each version from 2 down`: {Versions: map[string]int{"OrderPriced": 1}},
		`versions has 0 for "OrderPriced"`: {Versions: map[string]int{"OrderPriced": 0}},
	} {
		target.Broker = "a"
		require.ErrorContains(t, target.Check(d), want)
	}
	ok := Target{Broker: "a", Versions: map[string]int{"OrderPriced": 1, "OrderCancelled": 1}}
	require.NoError(t, ok.Check(pricing(t, oldPrice)))
	require.NoError(t, ok.Check(pricing(t, oldPrice, domain.WriteVersion(1))))
	ok.Versions["OrderPriced"] = 2
	require.ErrorContains(t, ok.Check(pricing(t, oldPrice, domain.WriteVersion(1))), `versions has 2 for "OrderPriced", which is written in version 1`)
}
