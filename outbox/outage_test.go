package outbox_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// F-40: of an outage there are two lines, also if an answer from before it is noted
// between the first failures.
func TestOutage_F_40_AnAnswerFromBeforeDoesNotEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		note := outbox.NewOutage(slog.New(slog.NewTextHandler(&logs, nil)))
		lines := func() int { return strings.Count(logs.String(), "\n") }
		note(nil)
		require.Zero(t, lines())
		for range 3 {
			note(errors.New("conn closed"))
			note(nil)
		}
		require.Equal(t, 1, lines(), logs.String())
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		note(nil)
		note(nil)
		require.Equal(t, 2, lines(), logs.String())
		require.Contains(t, logs.String(), `msg="the database answers again" after=1s`)
		note(errors.New("conn closed"))
		require.Equal(t, 3, lines(), logs.String())
	})
}
