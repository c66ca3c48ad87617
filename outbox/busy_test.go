package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A worker that knows that there is more is not polled: there is no store here to be
// asked.
func TestWatch_WhoIsBusyIsNotPolled(t *testing.T) {
	busy := &worker{}
	busy.full.Store(true)
	p := &Processor{lanes: map[string]*lane{"default": {workers: []*worker{busy}}}}
	require.True(t, p.find(t.Context()), "there is much to do: it is polled again soon")
}
