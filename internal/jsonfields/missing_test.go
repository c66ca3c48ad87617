package jsonfields_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/jsonfields"
)

type (
	besideAll struct{ Known int }
	grove     []grove
	entry     struct {
		Price int
		Note  string `json:",omitempty"`
	}
	ground struct{ Based int }
	ledger struct {
		besideAll
		ground
		No    int `json:"no"`
		At    time.Time
		First entry
		Ref   *entry
		Lines []entry
		By    map[string][]entry
		Tree  grove
		Zero  int `json:",omitzero"`
		Not   int `json:"-"`
	}
)

func TestMissing(t *testing.T) {
	t.Parallel()
	beside := reflect.TypeFor[besideAll]()
	full := func(v ledger) string {
		doc, err := json.Marshal(v)
		require.NoError(t, err)
		return string(doc)
	}
	const most = `"Based":1,"no":1,"At":"2026-01-01T00:00:00Z"`
	for doc, want := range map[string]string{
		full(ledger{}): "",
		full(ledger{Ref: &entry{}, Lines: []entry{{}}, By: map[string][]entry{"a": {{}}, "b": nil}, Tree: grove{{}, {grove{}}}}): "",
		`{}`:                          "Based",
		`{"Based":1}`:                 "no",
		`{` + most + `}`:              "First",
		`{` + most + `,"First":{}}`:   "First.Price",
		`{` + most + `,"First":null}`: "Ref",
		`{` + most + `,"First":{"Price":1},"Ref":{"Note":""}}`:                                 "Ref.Price",
		`{` + most + `,"First":{"Price":1},"Ref":null,"Lines":[{}]}`:                           "Lines.Price",
		`{` + most + `,"First":{"Price":1},"Ref":null,"Lines":[],"By":{"a":[{}]},"Tree":null}`: "By.Price",
		`{` + most + `,"First":{"Price":1},"Ref":null,"Lines":null,"By":null}`:                 "Tree",
	} {
		require.Equal(t, want, jsonfields.Missing(reflect.TypeFor[*ledger](), beside, []byte(doc)), doc)
	}
}
