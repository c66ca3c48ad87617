package contract_test

import (
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/contract"
	"github.com/waybill-go/waybill/domain"
)

type (
	Order struct{ domain.Root }
	Line  struct {
		Article string `json:"article" doc:"Its number in the catalogue."`
		Cents   uint   `json:"cents"`
	}
	Tree struct {
		Name     string
		Children []Tree `json:",omitempty"`
	}
	Base struct {
		OrderID string `json:"order_id"`
	}
	Placed struct {
		Base
		ID       uuid.UUID      `json:"id"`
		At       time.Time      `json:"at"`
		Lines    []Line         `json:"lines"`
		Counts   map[string]int `json:"counts,omitempty"`
		Note     *string        `json:"note"`
		Weight   *float64       `json:"weight,omitempty"`
		Price    *big.Int       `json:"price,omitempty"`
		Digest   []byte         `json:"digest,omitempty"`
		Number   int64          `json:"number,string"`
		Paid     bool           `json:"paid,omitzero"`
		Tree     Tree           `json:"tree"`
		internal int            `json:"-"`
	}
	PlacedV1 struct {
		Order string `json:"order"`
	}
	Noted  struct{ Text string }
	Cancel struct {
		OrderID string `json:"order_id"`
	}
)

func ordering(t *testing.T, elements ...domain.Element) *contract.Contract {
	t.Helper()
	d, err := domain.New("ordering", elements...)
	require.NoError(t, err)
	return contract.Of(d)
}

func order(options ...domain.AggregateOption) domain.Element {
	return domain.Aggregate[*Order]("order", options...)
}

// What a message looks like is described as encoding/json writes it.
func TestOf_Schema(t *testing.T) {
	_ = Placed{internal: 1}
	c := ordering(t,
		order(domain.Event[Placed](domain.Published(), domain.Version(2), domain.Upcast(1, func(PlacedV1) Placed { return Placed{} }), domain.Alias("Ordering.Made")), domain.Event[Noted]()),
		domain.Command[Cancel](domain.KeyedBy("order_id"), domain.FromOthers()),
	)
	text, err := json.Marshal(c)
	require.NoError(t, err)
	require.JSONEq(t, `{"context": "ordering", "aliases": {"Ordering.Made": "Ordering.Placed"}, "states": {"ordering::order.v1": true}, "messages": {
		"Ordering.Cancel.v1": {"kind": "command", "stream": "ordering::commands", "shared": true, "written": true, "data": {
			"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}},
		"Ordering.Noted.v1": {"kind": "event", "stream": "ordering::order", "shared": false, "written": true},
		"Ordering.Placed.v1": {"kind": "event", "stream": "ordering::order", "shared": true, "written": false, "data": {
			"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}},
		"Ordering.Placed.v2": {"kind": "event", "stream": "ordering::order", "shared": true, "written": true, "data": {
			"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
			"properties": {
				"order_id": {"type": "string"}, "id": {"type": "string"}, "at": {"type": "string", "format": "date-time"},
				"lines": {"type": ["array", "null"], "items": {"type": "object", "required": ["article", "cents"],
					"properties": {"article": {"type": "string", "description": "Its number in the catalogue."}, "cents": {"type": "integer", "minimum": 0}}}},
				"counts": {"type": "object", "additionalProperties": {"type": "integer"}},
				"note": {"type": ["string", "null"]}, "weight": {"type": "number"}, "price": {}, "digest": {"type": "string", "contentEncoding": "base64"},
				"number": {"type": "string"}, "paid": {"type": "boolean"},
				"tree": {"type": "object", "required": ["Name"], "properties": {"Name": {"type": "string"}, "Children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
			},
			"required": ["at", "id", "lines", "note", "number", "order_id", "tree"],
			"$defs": {"Tree": {"type": "object", "required": ["Name"], "properties": {"Name": {"type": "string"}, "Children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}}}}
	}}`, string(text))
	require.True(t, contract.Equal(c, c))
}

// Events of one name, as they might become.
type (
	a1 struct {
		OrderID string `json:"order_id"`
		Cents   int    `json:"cents"`
		Lines   []struct {
			Article string `json:"article"`
		} `json:"lines"`
	}
	aLess struct {
		OrderID string     `json:"order_id"`
		Lines   []struct{} `json:"lines"`
	}
	aRetyped struct {
		OrderID string `json:"order_id"`
		Cents   string `json:"cents"`
		Lines   []struct {
			Article int `json:"article"`
		} `json:"lines"`
	}
	aMore struct {
		a1
		Shop string `json:"shop"`
	}
	aMaybe struct {
		a1
		Shop string `json:"shop,omitempty"`
	}
	aLeftOut struct {
		OrderID string `json:"order_id"`
		Cents   int    `json:"cents,omitempty"`
		Lines   []struct {
			Article string `json:"article"`
		} `json:"lines"`
	}
	orderV1 struct{}
)

// F-38, F-39, N3: each kind of break is told with whom it breaks and with what helps.
func TestCompare_F38_F39_N3_TellsWhatBreaksWhom(t *testing.T) {
	named := func(more ...domain.EventOption) []domain.EventOption {
		return append(more, domain.Named("Placed"), domain.Published())
	}
	with := func(o domain.AggregateOption, elements ...domain.Element) *contract.Contract {
		return ordering(t, append(elements, order(o))...)
	}
	up := domain.Upcast(1, func(a1) aMore { return aMore{} })
	down := domain.Downcast(2, func(aMore) a1 { return a1{} })
	old := with(domain.Event[a1](named()...))
	for _, c := range []struct {
		old, new *contract.Contract
		want     []string
	}{
		{old, old, nil},
		{old, with(domain.Event[aMaybe](named()...)), nil},
		{old, with(domain.Event[aLess](named()...)), []string{
			`Ordering.Placed.v1: field "cents" is gone, which breaks readers: keep it, or make version 2 of it, with a domain.Upcast`,
			`Ordering.Placed.v1: field "lines[].article" is gone, which breaks readers: keep it, or make version 2 of it, with a domain.Upcast`,
		}},
		{old, with(domain.Event[aRetyped](named()...)), []string{
			`Ordering.Placed.v1: field "cents" is string and was integer, which breaks readers: let it have its type, or make version 2 of it, with a domain.Upcast`,
			`Ordering.Placed.v1: field "lines[].article" is integer and was string, which breaks readers: let it have its type, or make version 2 of it, with a domain.Upcast`,
		}},
		{old, with(domain.Event[aMore](named()...)), []string{
			`Ordering.Placed.v1: field "shop" is new and required, which breaks history: tag it omitzero, as what was written before doesn't have it, or make version 2 of it, with a domain.Upcast`,
		}},
		{with(domain.Event[aMaybe](named()...)), with(domain.Event[aMore](named()...)), []string{
			`Ordering.Placed.v1: field "shop" is required and wasn't, which breaks history: tag it omitzero, or make version 2 of it, with a domain.Upcast`,
		}},
		{old, with(domain.Event[aLeftOut](named()...)), []string{
			`Ordering.Placed.v1: field "cents" may be left out and wasn't, which breaks readers: take omitempty or omitzero out of its tag, or make version 2 of it, with a domain.Upcast`,
		}},
		{old, with(domain.Event[Noted]()), []string{
			`Ordering.Placed.v1: is gone, which breaks history: declare it again, or give its new name a domain.Alias("Ordering.Placed"); once nothing stored has it and nothing reads it, remove it and its example from the contract's files`,
		}},
		{old, with(domain.Event[a1](domain.Named("Placed"))), []string{
			`Ordering.Placed.v1: isn't for others any more, which breaks readers: give it domain.Published() again; once nothing else uses it, remove it from contract.json`,
		}},
		// A name that changes: it can be read before it is written, and others lose it anyway.
		{old, with(domain.Event[a1](domain.Named("Made"), domain.Published(), domain.Alias("Ordering.Placed"))), []string{
			`Ordering.Placed.v1: is called Ordering.Made now, which breaks readers: let it keep its name with domain.Named("Placed"), which lets its Go type have another one`,
			`Ordering.Made.v1: is written under a name that builds of the contract don't know, which breaks builds: let it keep its name with domain.Named("Placed"), or release a build first that reads the new one by domain.Alias("Ordering.Made")`,
		}},
		{with(domain.Event[a1](domain.Named("Placed"), domain.Alias("Ordering.Made"))), with(domain.Event[a1](domain.Named("Made"), domain.Alias("Ordering.Placed"))), nil},
		// A version: read first, then written.
		{old, with(domain.Event[aMore](named(domain.Version(2), up)...)), []string{
			`Ordering.Placed.v2: is written before builds of the contract could read it, which breaks builds: release a build with domain.WriteVersion(1) and domain.Downcast(2, …) first, and take the WriteVersion out with the next one`,
		}},
		{old, with(domain.Event[aMore](named(domain.Version(2), up, down, domain.WriteVersion(1))...)), nil},
		{with(domain.Event[aMore](named(domain.Version(2), up, down, domain.WriteVersion(1))...)), with(domain.Event[aMore](named(domain.Version(2), up)...)), nil},
		{with(domain.Event[aMore](named(domain.Version(2), up)...)), old, []string{
			`Ordering.Placed.v2: can't be read any more, which breaks history: add domain.Upcast(2, …)`,
		}},
		// Documents: the same.
		{with(domain.Event[Noted]()), ordering(t, order(domain.StateVersion(2), domain.UpcastState(1, func(orderV1) *Order { return &Order{} }))), []string{
			`Ordering.Noted.v1: is gone, which breaks history: declare it again, or give its new name a domain.Alias("Ordering.Noted"); once nothing stored has it and nothing reads it, remove it and its example from the contract's files`,
			`ordering::order.v2: is written before builds of the contract could read it, which breaks builds: release a build with domain.WriteState(1, …) first, and take that out with the next one`,
		}},
		{ordering(t, order()), ordering(t), []string{
			`ordering::order.v1: is gone, which breaks history: declare it again under its name; once no such document is stored, take it out of the contract's files`,
		}},
		// Commands of others: what they send has to do.
		{ordering(t, domain.Command[Cancel](domain.KeyedBy(""), domain.FromOthers())), ordering(t, domain.Command[Cancel](domain.KeyedBy(""))), []string{
			`Ordering.Cancel.v1: isn't for others any more, which breaks senders: give it domain.FromOthers() again; once nothing else uses it, remove it from contract.json`,
		}},
		{ordering(t, domain.Command[Cancel](domain.KeyedBy(""), domain.FromOthers())), ordering(t), []string{
			`Ordering.Cancel.v1: is gone, which breaks senders: declare it again with domain.FromOthers(); once no sender uses it any more, remove it from contract.json`,
		}},
		// The context's own commands wait as well.
		{ordering(t, domain.Command[Cancel](domain.KeyedBy(""))), ordering(t), []string{
			`Ordering.Cancel.v1: is gone, which breaks history: declare it again: it is named after its Go type, and waits in the outbox, in timers and in dead letters; once none of it is left there, remove it from contract.json`,
		}},
		{ordering(t), ordering(t, domain.Command[Cancel](domain.KeyedBy(""))), nil},
		{commands[Cancel](t), commands[cancelMore](t), []string{
			`Ordering.Cancel.v1: field "reason" is new and required, which breaks senders: tag it omitzero, as what was written before doesn't have it, or declare another command`,
		}},
	} {
		var got []string
		for _, b := range contract.Compare(c.old, c.new) {
			got = append(got, b.String())
		}
		require.Equal(t, c.want, got)
	}
}

type cancelMore struct {
	Cancel
	Reason string `json:"reason"`
}

// commands is the contract of one, whatever its Go type is called.
func commands[C any](t *testing.T) *contract.Contract {
	t.Helper()
	c := ordering(t, domain.Command[C](domain.KeyedBy(""), domain.FromOthers()))
	for name, m := range c.Messages {
		delete(c.Messages, name)
		c.Messages["Ordering.Cancel.v1"] = m
	}
	return c
}
