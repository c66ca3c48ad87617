package outboxdb

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whichever column is the longest, each is read as what it is, and none from the driver's
// memory, which is used again.
func TestResult_KeepsEachColumn(t *testing.T) {
	t.Parallel()
	id := "\x01\xa2\x15\xce\x1d\x9e\x7d\xa9\x8f\xd2\x7b\x31\xfe\x34\x43\x36"
	for name, lengths := range map[string][2]int{"body": {10, 5000}, "text": {5000, 10}, "short": {10, 10}, "as long": {5000, 5000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, body := strings.Repeat("t", lengths[0]), strings.Repeat("b", lengths[1])
			columns := [][]byte{{0, 7}, []byte(text), nil, []byte(body), []byte(id), {1}}
			var all results
			for i := range 100 { // They lie together.
				all.add([][]byte{{0, byte(i)}, []byte("another"), []byte(body)})
				if i == 50 {
					all.add(columns)
				}
			}
			r := all.rows[51]
			for _, c := range columns {
				clear(c)
			}
			require.EqualValues(t, 51, all.rows[52].number(0))
			require.Equal(t, "another", all.rows[50].text(1))
			require.EqualValues(t, 7, r.number(0))
			require.Equal(t, text, r.text(1))
			require.True(t, r.null(2))
			require.Empty(t, r.text(2))
			require.Equal(t, body, string(r.bytes(3)))
			require.False(t, r.null(3))
			have, err := r.uuid(4)
			require.NoError(t, err)
			require.Equal(t, "01a215ce-1d9e-7da9-8fd2-7b31fe344336", have)
			require.True(t, r.yes(5))
			for _, i := range []int{0, 2} {
				_, err = r.uuid(i)
				require.ErrorContains(t, err, "bytes instead of 16")
			}
		})
	}
}
