package firstrow_test

import (
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/firstrow"
)

// A failure behind the first row comes in its place; all others where they are. What was
// returned stays as it was until the next call, though a driver uses its memory again.
func TestReader(t *testing.T) {
	errLate := errors.New("late")
	for name, test := range map[string]struct {
		rows int
		end  error
		want []string
		err  error
	}{
		"none":             {0, io.EOF, nil, io.EOF},
		"none, a failure":  {0, errLate, nil, errLate},
		"one":              {1, io.EOF, []string{"a"}, io.EOF},
		"one, a failure":   {1, errLate, nil, errLate},
		"two":              {2, io.EOF, []string{"a", "b"}, io.EOF},
		"three":            {3, io.EOF, []string{"a", "b", "c"}, io.EOF},
		"three, a failure": {3, errLate, []string{"a", "b", "c"}, errLate},
	} {
		t.Run(name, func(t *testing.T) {
			memory, n := []byte("?"), 0
			next := func(dest []driver.Value) error {
				if n == test.rows {
					memory[0] = '!'
					return test.end
				}
				memory[0] = byte('a' + n)
				n++
				dest[0], dest[1], dest[2] = memory, int64(n), []byte(nil)
				return nil
			}
			var r firstrow.Reader
			var got []string
			dest := make([]driver.Value, 3)
			err := r.Next(dest, next)
			for ; err == nil; err = r.Next(dest, next) {
				got = append(got, string(dest[0].([]byte)))
				require.EqualValues(t, len(got), dest[1])
				require.Nil(t, dest[2])
			}
			require.Equal(t, test.want, got)
			require.ErrorIs(t, err, test.err)
		})
	}
}
