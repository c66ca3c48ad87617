package dberr_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dberr"
)

var (
	claim = dberr.Task{What: "claim rows", Who: "w1"}
	tidy  = dberr.Task{What: "remove expired rows", Aside: true}
)

// F-40: of an outage there are two lines, also if an answer from before it is noted
// between the first failures.
func TestOutage_F_40_AnAnswerFromBeforeDoesNotEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		o := dberr.Outage{Log: slog.New(slog.NewTextHandler(&logs, nil))}
		note := func(err error) { o.Note(context.Background(), claim, err) }
		lines := func() int { return strings.Count(logs.String(), "\n") }
		note(nil)
		require.Zero(t, lines())
		for range 3 {
			note(errors.New("conn closed"))
			note(nil)
		}
		require.Equal(t, 1, lines(), logs.String())
		<-time.After(time.Second)
		note(nil)
		note(nil)
		require.Equal(t, 2, lines(), logs.String())
		require.Contains(t, logs.String(), `msg="the database answers again" after=1s`)
	})
}

// A server that has no connection left for some refuses and answers several times a second: the log
// has two lines of that in half a minute, and one of what still fails then.
func TestOutage_OfOnesThatFollowEachOtherTheLogHasFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		o := dberr.Outage{Log: slog.New(slog.NewTextHandler(&logs, nil))}
		lines := func() int { return strings.Count(logs.String(), "\n") }
		begin := time.Now()
		for time.Since(begin) < 29*time.Second {
			o.Note(t.Context(), claim, errors.New("too many clients"))
			<-time.After(300 * time.Millisecond)
			o.Note(t.Context(), claim, nil)
		}
		require.Equal(t, 2, lines(), logs.String())
		fail := func() { o.Note(t.Context(), claim, errors.New("too many clients")) }
		fail()
		require.Equal(t, 2, lines())
		<-time.After(time.Second)
		fail()
		require.Equal(t, 3, lines(), "it still fails")
		<-time.After(time.Second)
		o.Note(t.Context(), claim, nil)
		require.Contains(t, logs.String(), "after=2s")
		fail()
		<-time.After(time.Second)
		o.Note(t.Context(), claim, nil)
		require.Equal(t, 4, lines(), "of one without a begin, no end")
	})
}

// S1: what others are let do is no sign that a task is; what passes is no trouble
// before it has lasted, and what doesn't is at once.
func TestOutage_S1_EachTaskForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := dberr.Outage{Log: slog.New(slog.DiscardHandler)}
		ctx, look := t.Context(), dberr.Task{What: "look for rows"}
		denied := &pgconn.PgError{Code: dberr.Denied, Message: "permission denied for sequence s"}
		o.Note(ctx, tidy, denied)
		require.Equal(t, "remove expired rows", o.Worst().What)
		o.Note(ctx, claim, denied)
		o.Note(ctx, look, nil)
		worst := o.Worst()
		require.Equal(t, "claim rows", worst.What, "it stops everything")
		require.Equal(t, dberr.Denied, worst.Code)
		require.Contains(t, worst.Error, "permission denied for sequence s")
		o.Note(ctx, claim, nil)
		require.True(t, o.Worst().Aside)
		o.Note(ctx, tidy, nil)
		require.Nil(t, o.Worst())

		o.Note(ctx, look, errors.New("conn closed"))
		require.Nil(t, o.Worst())
		<-time.After(6 * time.Second)
		require.Equal(t, "look for rows", o.Worst().What)

		ended, cancel := context.WithCancel(ctx)
		cancel()
		o.Note(ended, claim, denied)
		require.Equal(t, "look for rows", o.Worst().What, "what ends with the process is nobody's trouble")
	})
}

// F-40: where another line tells of the outage, what passes by itself needs none, and
// is told all the same if it alone goes on. What doesn't pass is told at once.
func TestOutage_F_40_TellsWhatNobodyElseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		elsewhere := true
		o := dberr.Outage{Log: slog.New(slog.NewTextHandler(&logs, nil)), Told: func() bool { return elsewhere }}
		fail := func(err error) int {
			o.Note(t.Context(), tidy, err)
			return strings.Count(logs.String(), "level=WARN")
		}
		require.Zero(t, fail(errors.New("conn closed")))
		<-time.After(time.Minute)
		require.Zero(t, fail(errors.New("conn closed")), "another line tells of it")
		elsewhere = false
		require.Equal(t, 1, fail(errors.New("conn closed")))
		require.Equal(t, 1, fail(errors.New("conn closed")))
		<-time.After(time.Second)
		o.Note(t.Context(), tidy, nil)
		require.Contains(t, logs.String(), "the database answers again")
		<-time.After(time.Minute)
		require.Equal(t, 2, fail(&pgconn.PgError{Code: dberr.Denied}))
	})
}
