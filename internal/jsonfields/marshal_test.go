package jsonfields_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/jsonfields"
)

type lines struct {
	Colour string
	Notes  map[string]any
	*within
	Hidden string `json:"-"`
	Raw    json.RawMessage
	At     time.Time
	Bytes  []byte
	Next   *lines `json:"next,omitempty"`
}

type within struct{ Inside string }

// Go's JSON writes U+FFFD for what isn't UTF-8: a name that was read from a file in Latin-1
// would come back as another one.
func TestMarshal_RefusesTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	const latin1 = "M\xfcller"
	for what, v := range map[string]any{
		"Colour":                lines{Colour: latin1},
		"Next.Colour":           &lines{Next: &lines{Colour: latin1}},
		`[2].Notes["x"][1]`:     []lines{{}, {}, {Notes: map[string]any{"x": []any{1, latin1}}}},
		`the key of Notes["M`:   lines{Notes: map[string]any{latin1: 1}},
		`the key of ["M`:        map[hexed]int{latin1: 1},
		"within.Inside":         lines{within: &within{latin1}},
		"it is not UTF-8":       latin1,
		"its JSON is not UTF-8": bare(latin1),
	} {
		_, err := jsonfields.Marshal(v)
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, "UTF-8")
	}
}

// What only looks like it is stored as it is.
func TestMarshal_WritesWhatEncodingJSONWrites(t *testing.T) {
	t.Parallel()
	for _, v := range []any{
		nil, 1, "Müller �", `\ufffd`,
		lines{Colour: `\ufffd`, Hidden: "\xff", Bytes: []byte{0xff}, Raw: json.RawMessage(`"\ufffd"`)},
		[]any{hexed("\xff"), `\ufffd`},
		[]any{&hexed2{"\xff"}, `\ufffd`},
		map[int]string{1: `\ufffd`},
		[1]*string{},
		&lines{Next: &lines{Colour: `a\ufffd`}},
	} {
		want, err := json.Marshal(v)
		require.NoError(t, err)
		got, err := jsonfields.Marshal(v)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
	_, err := jsonfields.Marshal(func() {})
	require.ErrorContains(t, err, "unsupported type")
}

// bare writes what it has between quotes, as a MarshalJSON may.
type bare string

func (b bare) MarshalJSON() ([]byte, error) { return []byte(`"` + string(b) + `"`), nil }

// hexed and hexed2 write what is no text as one.
type (
	hexed  string
	hexed2 struct{ bytes string }
)

func (h hexed) MarshalText() ([]byte, error)   { return fmt.Appendf(nil, "%x", string(h)), nil }
func (h *hexed2) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", h.bytes), nil }
