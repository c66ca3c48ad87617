package dberr

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClip_FitsAColumnForErrors(t *testing.T) {
	require.Equal(t, "fine: ü", Clip("fine: ü"))
	require.Equal(t, "a\uFFFDb\uFFFD", Clip("a\x00b\xff"))
	long := strings.Repeat("ü", MaxText)
	require.Equal(t, long, Clip(long))
	require.Equal(t, long[:2*(MaxText-1)]+"…", Clip(long+"x"))
}
