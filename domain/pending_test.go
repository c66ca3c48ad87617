package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
)

func TestPendingEvents_AreThoseThatNoCommitHasStored(t *testing.T) {
	o := &Order{Root: domain.NewRoot()}
	require.Empty(t, domain.PendingEvents(o))

	placed := OrderPlaced{OrderID: o.ID()}
	o.Raise(placed)
	o.Raise(NoteAdded{Text: "gift"})
	pending := domain.PendingEvents(o)
	require.Len(t, pending, 2)
	require.Equal(t, []any{placed, NoteAdded{Text: "gift"}}, []any{pending[0].Event, pending[1].Event})
	require.Equal(t, pending, domain.PendingEvents(o), "looking changes nothing")

	state := rootstate.Of(o)
	require.Equal(t, []string{state.Raised[0].ID, state.Raised[1].ID}, []string{pending[0].ID, pending[1].ID})
	state.Raised = nil // as a commit leaves it
	require.Empty(t, domain.PendingEvents(o))
	require.Len(t, pending, 2)
}
