package sqlite

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
)

// Whoever gives up in the moment in which its turn comes hands it on: nobody else would ever get one.
func TestGate_ATurnThatCameTooLateIsHandedOn(t *testing.T) {
	t.Parallel()
	for range 20 { // in which both come before it waits are left to chance
		var g gate
		require.True(t, g.tryEnter())
		ctx, end := context.WithCancel(t.Context())
		gaveUp := make(chan error)
		go func() { gaveUp <- g.enter(ctx, false) }()
		waittest.Until(t, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.waiting) == 1
		})
		g.mu.Lock()
		end()
		g.handOn()
		g.mu.Unlock()
		if <-gaveUp == nil {
			g.leave()
		}
		require.False(t, g.busy())
	}
}
