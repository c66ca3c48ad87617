package domain_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

// A parcel's events and its document have had three forms.
type (
	Parcel struct {
		domain.Root
		Milligrams int
	}
	parcelV1 struct{ Kilos int }
	parcelV2 struct{ Grams int }
	selfMade struct{ domain.Root }

	Weighed   struct{ Milligrams int }
	WeighedV1 struct{ Kilos int }
	WeighedV2 struct{ Grams int }
	leaky     struct{ kilos int } //nolint:unused // so it would be lost
)

func (*selfMade) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }
func (*selfMade) UnmarshalJSON(_ []byte) error { return nil }

var (
	weighed = []domain.EventOption{
		domain.Version(3),
		domain.Upcast(1, func(e WeighedV1) WeighedV2 { return WeighedV2{e.Kilos * 1000} }),
		domain.Upcast(2, func(e WeighedV2) Weighed { return Weighed{e.Grams * 1000} }),
		domain.Downcast(3, func(e Weighed) WeighedV2 { return WeighedV2{e.Milligrams / 1000} }),
		domain.Downcast(2, func(e WeighedV2) WeighedV1 { return WeighedV1{e.Grams / 1000} }),
	}
	states = []domain.AggregateOption{
		domain.StateVersion(3),
		domain.UpcastState(1, func(s parcelV1) parcelV2 { return parcelV2{s.Kilos * 1000} }),
		domain.UpcastState(2, func(s parcelV2) *Parcel { return &Parcel{Milligrams: s.Grams * 1000} }),
	}
)

func parcels(event []domain.EventOption, more ...domain.AggregateOption) (*domain.Domain, error) {
	return domain.New("shipping", domain.Aggregate[*Parcel]("parcel", append(more, domain.Event[Weighed](event...))...))
}

// N3: what is written, and under which name; it reads as the current type all the same.
func TestWriteVersion_N3(t *testing.T) {
	for version, want := range map[int]string{1: `{"Kilos":2}`, 2: `{"Grams":2000}`, 0: `{"Milligrams":2000000}`} {
		options := weighed
		if version > 0 {
			options = append(slices.Clip(options), domain.WriteVersion(version))
		}
		d, err := parcels(options)
		require.NoError(t, err)
		typ, data, err := d.Encode(Weighed{2_000_000})
		require.NoError(t, err)
		require.Equal(t, want, string(data))
		require.Equal(t, typ.WireNameOf(typ.Written), typ.WrittenName())
		require.Equal(t, "Shipping.Weighed.v3", typ.WireName())
		read, err := d.Decode(typ.WrittenName(), data)
		require.NoError(t, err)
		require.Equal(t, Weighed{2_000_000}, read)
		require.Equal(t, []int{1, 2, 3}, typ.Reads())
	}
}

// N3: any version of any other, as far as there are steps.
func TestRecast_N3(t *testing.T) {
	d, err := parcels(append(weighed, domain.Alias("Shipping.Scaled")))
	require.NoError(t, err)
	recast := func(name, data string, version int) string {
		t.Helper()
		name, made, err := d.Recast(name, []byte(data), version)
		require.NoError(t, err)
		return name + " " + string(made)
	}
	require.Equal(t, `Shipping.Weighed.v1 {"Kilos":2}`, recast("Shipping.Weighed.v3", `{"Milligrams":2000000}`, 1))
	require.Equal(t, `Shipping.Weighed.v3 {"Milligrams":2000000}`, recast("Shipping.Scaled.v1", `{"Kilos":2}`, 3))
	require.Equal(t, `Shipping.Scaled.v2 { "Grams": 2, "x": 1}`, recast("Shipping.Scaled.v2", `{ "Grams": 2, "x": 1}`, 2), "the same is not touched")

	d, err = parcels(weighed[:3])
	require.NoError(t, err)
	_, _, err = d.Recast("Shipping.Weighed.v3", []byte("{}"), 2)
	require.EqualError(t, err, "domain shipping: Shipping.Weighed.v3 can't become version 2, as a step between them is missing: declare it")
	_, _, err = d.Recast("Shipping.Weighed.v4", []byte("{}"), 2)
	_, newer := errors.AsType[*domain.UnknownEventError](err)
	require.True(t, newer)
}

// N3: what a document is written as, and read from. One that is stored in a newer version is
// never written back in the older one, which might lose something.
func TestState_Forms(t *testing.T) {
	options := append(slices.Clip(states), domain.WriteState(1, func(p *Parcel) parcelV1 { return parcelV1{p.Milligrams / 1_000_000} }))
	d, err := parcels(nil, options...)
	require.NoError(t, err)
	typ, err := domain.AggregateTypeFor[*Parcel](d)
	require.NoError(t, err)
	for version, doc := range map[int]string{1: `{"Kilos":2}`, 2: `{"Grams":2000}`, 3: `{"Milligrams":2000000}`} {
		p, unknown, err := typ.State.Decode("p1", []byte(doc), version)
		require.NoError(t, err)
		require.Empty(t, unknown)
		require.Equal(t, 2_000_000, p.(*Parcel).Milligrams)
	}
	for stored, want := range map[int]int{0: 1, 1: 1, 2: 3, 3: 3} {
		doc, version, err := typ.State.Encode(&Parcel{Milligrams: 2_000_000}, stored, nil)
		require.NoError(t, err)
		require.Equal(t, want, version, "stored in %d", stored)
		require.Equal(t, map[int]string{1: `{"Kilos":2}`, 3: `{"Milligrams":2000000}`}[version], string(doc))
	}
	_, _, err = typ.State.Decode("p1", []byte("{}"), 4)
	require.EqualError(t, err, `parcel "p1" is stored in state version 4, and this build reads up to 3: deploy the newer build everywhere, and let that one write 3 with domain.WriteState until then`)
	newer, ok := errors.AsType[*domain.NewerStateError](err)
	require.True(t, ok)
	require.Equal(t, "shipping::parcel.v4", newer.Needs())
	_, _, err = typ.State.Decode("p1", []byte("{}"), 0)
	require.ErrorContains(t, err, "state version 0, which was never declared")
	_, _, err = typ.State.Decode("p1", []byte(`{"Grams":1,"Kilos":1}`), 2)
	require.ErrorContains(t, err, `parcel "p1": "Kilos" is not a field of domain_test.parcelV2 in state version 2`)
}

// What an older form didn't know stays, unless the newer one has a field of that name,
// which would have to be filled.
func TestState_KeepUnknownAcrossVersions(t *testing.T) {
	d, err := parcels(nil, append(slices.Clip(states), domain.KeepUnknown())...)
	require.NoError(t, err)
	typ, err := domain.AggregateTypeFor[*Parcel](d)
	require.NoError(t, err)
	p, unknown, err := typ.State.Decode("p1", []byte(`{"Kilos":2,"Colour":"red"}`), 1)
	require.NoError(t, err)
	doc, version, err := typ.State.Encode(p, 1, unknown)
	require.NoError(t, err)
	require.Equal(t, 3, version)
	require.Equal(t, `{"Milligrams":2000000,"Colour":"red"}`, string(doc)) //nolint:testifylint // to the byte
	_, _, err = typ.State.Decode("p1", []byte(`{"Kilos":2,"Milligrams":5}`), 1)
	require.ErrorContains(t, err, `parcel "p1": "Milligrams" is not a field of domain_test.parcelV1 in state version 1`)
}

// Readable knows events, documents and processes by the names that tell what is missing.
func TestReadable(t *testing.T) {
	d, err := parcels(weighed, states...)
	require.NoError(t, err)
	for name, want := range map[string]bool{
		"Shipping.Weighed.v1": true, "Shipping.Weighed.v3": true, "Shipping.Weighed.v4": false, "Shipping.Gone.v1": false,
		"shipping::parcel.v3": true, "shipping::parcel.v4": false, "shipping::parcel": false,
	} {
		require.Equal(t, want, d.Readable(name), name)
	}
}

func TestEvolution_RefusesWithTheRemedy(t *testing.T) {
	up := weighed[1:3]
	for _, c := range []struct {
		want    string
		event   []domain.EventOption
		options []domain.AggregateOption
	}{
		{`event Shipping.Weighed is written in version 2, and nothing makes version 2 of version 3: add domain.Downcast(3, func(e domain_test.Weighed) domain_test.WeighedV2 {…})`, append(weighed[:3:3], domain.WriteVersion(2)), nil},
		{`event Shipping.Weighed is written in version 1, and nothing makes version 1 of version 2: add domain.Downcast(2, `, append(weighed[:4:4], domain.WriteVersion(1)), nil},
		{`event Shipping.Weighed is version 3, which is written anyway: take domain.WriteVersion(3) out`, append(weighed[:3:3], domain.WriteVersion(3)), nil},
		{`event Shipping.Weighed is version 3, and domain.WriteVersion says 4: write one that is older`, append(weighed[:3:3], domain.WriteVersion(4)), nil},
		{`event Shipping.Weighed can't be written in version 0`, append(weighed[:3:3], domain.WriteVersion(0)), nil},
		{`event Shipping.Weighed is version 1, and domain.Downcast makes version 2: let it make one that is older`, weighed[3:4], nil},
		{`event Shipping.Weighed has two downcasts from version 3`, append(weighed[:5:5], weighed[3]), nil},
		{`event Shipping.Weighed: domain.Downcast(3, nil) has no function`, append(weighed[:3:3], domain.Downcast[Weighed, WeighedV2](3, nil)), nil},
		{`event Shipping.Weighed: the domain.Downcast that makes version 2 takes domain_test.WeighedV1, and version 3 is domain_test.Weighed: let it take that`, append(weighed[:3:3], domain.Downcast(3, func(WeighedV1) WeighedV2 { return WeighedV2{} })), nil},
		{`event Shipping.Weighed: the domain.Downcast that makes version 2 returns domain_test.WeighedV1, and domain.Upcast(2, …) reads domain_test.WeighedV2: return that`, append(weighed[:3:3], domain.Downcast(3, func(Weighed) WeighedV1 { return WeighedV1{} })), nil},
		{`event Shipping.Weighed: version 1 is written: leaky.kilos is unexported and would be lost`, []domain.EventOption{domain.Version(2), domain.Upcast(1, func(leaky) Weighed { return Weighed{} }), domain.Downcast(2, func(Weighed) leaky { return leaky{} })}, nil},
		{`event Shipping.Weighed is version 1, so nothing is upcast from version 1`, up, nil},

		{`aggregate "parcel" can't have state version 0: versions start at 1`, nil, []domain.AggregateOption{domain.StateVersion(0)}},
		{`the state of aggregate "parcel" is version 2 but nothing reads version 1: add domain.UpcastState(1, func(old ParcelV1) *domain_test.Parcel {…})`, nil, []domain.AggregateOption{domain.StateVersion(2)}},
		{`the state of aggregate "parcel": domain.UpcastState(2, …) returns domain_test.parcelV1, and version 3 is *domain_test.Parcel: return that`, nil, append(states[:2:2], domain.UpcastState(2, func(parcelV2) parcelV1 { return parcelV1{} }))},
		{`aggregate "parcel" has two domain.UpcastState from version 1`, nil, append(states[:3:3], states[1])},
		{`aggregate "parcel": domain.UpcastState(1, nil) has no function`, nil, append([]domain.AggregateOption{domain.UpcastState[parcelV1, parcelV2](1, nil)}, states[0], states[2])},
		{`the state of aggregate "parcel" is version 3, and domain.WriteState makes version 3: let it make one that is older`, nil, append(states[:3:3], domain.WriteState(3, func(p *Parcel) parcelV2 { return parcelV2{} }))},
		{`the state of aggregate "parcel": the domain.WriteState that makes version 2 returns domain_test.parcelV1, and domain.UpcastState(2, …) reads domain_test.parcelV2: return that`, nil, append(states[:3:3], domain.WriteState(2, func(p *Parcel) parcelV1 { return parcelV1{} }))},
		{`the state of aggregate "parcel": the domain.WriteState that makes version 2 takes domain_test.parcelV1, and version 3 is *domain_test.Parcel: let it take that`, nil, append(states[:3:3], domain.WriteState(2, func(p parcelV1) parcelV2 { return parcelV2{} }))},
		{`aggregate "parcel": domain.WriteState(2, nil) has no function`, nil, append(states[:3:3], domain.WriteState[*Parcel, parcelV2](2, nil))},
	} {
		_, err := parcels(c.event, c.options...)
		require.ErrorContains(t, err, c.want)
	}
	_, err := domain.New("shipping", domain.Aggregate[*selfMade]("box", domain.KeepUnknown()))
	require.ErrorContains(t, err, `aggregate "box" is declared with domain.KeepUnknown() and *domain_test.selfMade has MarshalJSON`)
	_, err = domain.New("shipping", domain.Foreign[Weighed]("Scales.Weighed.v3", weighed[1:4]...))
	require.ErrorContains(t, err, "foreign event Scales.Weighed can't have a Downcast or a WriteVersion")
}
