package projection_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/projection"
)

// A field that got another name reads as empty, and the text said of no row which, and not why.
func TestMissingRowError_SaysOfAnEmptyKeyWhereItComesFrom(t *testing.T) {
	err := &projection.MissingRowError{Projection: "board", Table: "orders", Key: "o1"}
	require.Contains(t, err.Error(), "orders has no row o1 to change: a handler that was to Put it is missing")
	for key, want := range map[any]string{"": `no row "" to change`, 0: "no row 0 to change"} {
		err.Key = key
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "the key is empty, as of an event whose field got another name in Go or JSON without domain.Version and domain.Upcast")
	}
	err.Key = nil
	require.ErrorContains(t, err, "no row <nil> to change")
}
