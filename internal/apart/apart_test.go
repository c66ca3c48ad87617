package apart

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCall(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	require.NoError(t, Call(func() error { return nil }))
	require.Equal(t, failure, Call(func() error { return failure }))
	require.Equal(t, ErrEnded, Call(func() error {
		runtime.Goexit()
		return nil
	}))
}
