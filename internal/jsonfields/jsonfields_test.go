package jsonfields_test

import (
	"encoding/json"
	"math/big"
	"net/url"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/jsonfields"
)

type root struct{ id string }

type (
	line struct {
		Article string
		Price   *big.Int
		colour  string //nolint:unused // so it would be lost
	}
	base    struct{ Name string }
	Named   struct{ Name string }
	payment interface{ pay() }
	sealed  struct{ secret string }
	half    struct{ Text string }
	plain   map[string]int
	none    struct{} //nolint:unused // a field has it
	tree    struct {
		Label    string
		Children []*tree
	}
	stamped struct {
		time.Time
		Zone string
	}
	overriding struct {
		time.Time
		Zone string
	}
)

func (s sealed) MarshalJSON() ([]byte, error)  { return json.Marshal(s.secret) }
func (s *sealed) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &s.secret) }
func (half) MarshalJSON() ([]byte, error)      { return []byte(`{}`), nil }

func (o overriding) MarshalJSON() ([]byte, error)  { return json.Marshal(o.Zone) }
func (o *overriding) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &o.Zone) }

// N2: all that JSON would drop is named, with what helps.
func TestLost_N2(t *testing.T) {
	lost := func(want []string, v any) {
		t.Helper()
		found := jsonfields.Lost(reflect.TypeOf(v), reflect.TypeFor[root](), "")
		if len(want) == 0 {
			require.Empty(t, found)
			return
		}
		require.Equal(t, want, found)
	}
	type Book struct {
		root
		base
		_        string
		nothing  none   //nolint:unused // nothing is in it
		Title    string `json:"title"`
		Since    time.Time
		ID       uuid.UUID
		Price    big.Int
		Key      sealed
		Stock    plain
		Copies   [2]tree
		Raw      json.RawMessage
		Data     []byte
		ByID     map[uuid.UUID]int
		cache    string `json:"-"`
		Zone     *overriding
		internal struct{} //nolint:unused // nothing is in it
	}
	lost(nil, &Book{root: root{"1"}, cache: "x"})

	type Order struct {
		root   //nolint:unused // it is looked at
		secret string
		Lines  []*line
		ByName map[string]line
		Site   url.URL
		Mu     sync.Mutex
	}
	lost([]string{
		`Order.secret is unexported and would be lost: export it, tag it json:"-" if it needn't be kept, or give Order MarshalJSON and UnmarshalJSON`,
		`line.colour is unexported and would be lost: export it, tag it json:"-" if it needn't be kept, or give line MarshalJSON and UnmarshalJSON`,
		`Order.Site.User is a url.Userinfo, of which JSON drops what is unexported: give it a type with MarshalJSON and UnmarshalJSON, or tag it json:"-" if it needn't be kept`,
		`Order.Mu is a sync.Mutex, of which JSON drops what is unexported: give it a type with MarshalJSON and UnmarshalJSON, or tag it json:"-" if it needn't be kept`,
	}, &Order{secret: "x"})

	type Odd struct {
		*base
		Named
		Other struct {
			Named
			Same  string `json:"Name"`
			inner root
		}
		Name   string
		Notify chan int
		Do     func()
		Pay    payment
		Any    any
		Bools  map[bool]int
		Half   half
		Stamp  stamped
	}
	lost([]string{
		`Odd.base is an embedded pointer to an unexported type, which JSON can't fill: embed it by value, or export the type`,
		`Odd.Named.Name and Odd.Name are all "Name" in JSON, which keeps one of them at most: give each a name of its own`,
		`Odd.Other.inner is the identity of another aggregate, and would be lost: keep that aggregate's id instead, and save it by its own repository`,
		`Odd.Other.Named.Name and Odd.Other.Same are all "Name" in JSON, which keeps one of them at most: give each a name of its own`,
		`Odd.Notify is a chan int, which JSON can't carry: change it, or tag it json:"-" if it needn't be kept`,
		`Odd.Do is a func(), which JSON can't carry: change it, or tag it json:"-" if it needn't be kept`,
		`Odd.Pay is an interface (jsonfields_test.payment), and JSON doesn't keep which type is in it: give it a type of its own, such as a struct or json.RawMessage, or tag it json:"-" if it needn't be kept`,
		`Odd.Any is an interface (interface {}), and JSON doesn't keep which type is in it: give it a type of its own, such as a struct or json.RawMessage, or tag it json:"-" if it needn't be kept`,
		`Odd.Bools has keys of type bool, which JSON can't carry: make them texts or whole numbers, or tag it json:"-" if it needn't be kept`,
		`half has MarshalJSON but no UnmarshalJSON: give it both or neither`,
		`stamped has the MarshalJSON of a type that it embeds, which writes that one alone: give the embedded field a name, or give stamped MarshalJSON and UnmarshalJSON`,
	}, &Odd{})

	// Encoded by value, methods of pointers aren't called.
	type Event struct{ Price big.Int }
	lost([]string{`Int has a MarshalJSON with a pointer receiver, which isn't called here: give it a value receiver, because values are encoded here and no pointers`}, Event{})
	lost(nil, struct{ Price *big.Int }{})
}

// N2: what a document has and the type has not.
func TestUnknown_N2(t *testing.T) {
	type Book struct {
		root         //nolint:unused // it is looked at
		Title string `json:"title"`
		Named
		Lines  []*struct{ Article string }
		ByName map[string]struct{ N int }
		Key    sealed
	}
	doc := `{"TITLE": "x", "Name": "y", "copys": 3, "Lines": [{"Article": "a"}, {"Colour": "red"}], "ByName": {"a": {"N": 1, "M": 2}}, "Key": {"z": 1}}`
	require.Equal(t, []string{`ByName["a"].M`, "Lines[1].Colour", "copys"}, jsonfields.Unknown(reflect.TypeFor[*Book](), []byte(doc)))

	known, rest, err := jsonfields.Split(reflect.TypeFor[Book](), []byte(`{"title": "x", "copys": 3, "b": {"c": 12345678901234567890.10}}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"title": "x"}`, string(known))
	require.Equal(t, `{"b":{"c":12345678901234567890.10},"copys":3}`, string(rest))                                                       //nolint:testifylint // to the byte
	require.Equal(t, `{"title":"y","b":{"c":12345678901234567890.10},"copys":3}`, string(jsonfields.Join([]byte(`{"title":"y"}`), rest))) //nolint:testifylint // to the byte
	require.Equal(t, string(rest), string(jsonfields.Join([]byte(`{}`), rest)))
	require.Equal(t, `{}`, string(jsonfields.Join([]byte(`{}`), nil)))
}
