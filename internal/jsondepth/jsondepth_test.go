package jsondepth

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExceeds(t *testing.T) {
	nested := func(n int) string { return strings.Repeat(`{"a":[`, n) + strings.Repeat(`]}`, n) }
	for text, want := range map[string]bool{
		"":                      false,
		nested(2):               false,
		nested(2) + nested(2):   false,
		nested(2)[1:]:           false,
		nested(3):               true,
		`{"a":"[[[[[[\"{{{{{"}`: false,
		`{"a":"\\","b":[[[[1`:   true,
		`"[[[[[[`:               false,
		`"\`:                    false,
	} {
		require.Equal(t, want, Exceeds([]byte(text), 4), text)
	}
}
