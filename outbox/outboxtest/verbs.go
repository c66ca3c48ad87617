package outboxtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// inState stores one row in the given state and returns its seq.
func (b *Bench) inState(w Worker, key string, s outbox.Status, hold bool) int64 {
	b.T.Helper()
	b.Insert(key)
	all := b.Entries()
	seq := all[len(all)-1].Seq
	if s == outbox.Pending {
		return seq
	}
	c := w.Claim(1)
	require.Equal(b.T, []string{key}, Keys(c))
	if s != outbox.Processing {
		o := failed(time.Hour)
		o.Status, o.Hold = s, hold
		w.Settle(c, All(c, o)...)
	}
	return seq
}

func (b *Bench) entry(seq int64) outbox.Entry {
	b.T.Helper()
	for _, e := range b.Entries() {
		if e.Seq == seq {
			return e
		}
	}
	b.T.Fatalf("no row %d", seq)
	return outbox.Entry{}
}

func retryVerb(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	f, a := b.inState(w, "f", outbox.Failed, false), b.inState(w, "a", outbox.Abandoned, false)
	require.NoError(t, b.Retry(t.Context(), a, f))
	for _, seq := range []int64{f, a} {
		e := b.entry(seq)
		require.Equal(t, outbox.Pending, e.Status)
		require.Zero(t, e.Attempts)
		require.Nil(t, e.ExpiresAt)
	}
	require.ElementsMatch(t, []string{"f", "a"}, Keys(w.Claim(10)), "due at once")
}

func refusedVerbs(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", Partitions, time.Minute)
	seqs := map[outbox.Status]int64{}
	for _, s := range []outbox.Status{outbox.Processing, outbox.Published, outbox.Failed, outbox.Abandoned, outbox.Pending} {
		seqs[s] = b.inState(w, "k-"+string(s), s, false)
	}
	before := b.Entries()
	for verb, c := range map[string]struct {
		do   func(context.Context, ...int64) error
		from []outbox.Status
	}{
		"retry":      {b.Retry, []outbox.Status{outbox.Failed, outbox.Abandoned}},
		"abandon":    {func(ctx context.Context, s ...int64) error { return b.Abandon(ctx, outbox.Retention{}, s...) }, []outbox.Status{outbox.Pending, outbox.Failed}},
		"skip":       {func(ctx context.Context, s ...int64) error { return b.Skip(ctx, outbox.Retention{}, s...) }, nil},
		"prioritize": {func(ctx context.Context, s ...int64) error { return b.Prioritize(ctx, 7, s...) }, []outbox.Status{outbox.Pending, outbox.Failed}},
	} {
		allowed := map[outbox.Status]bool{}
		for _, s := range c.from {
			allowed[s] = true
		}
		for s, seq := range seqs {
			if allowed[s] {
				continue
			}
			good := seqs[outbox.Failed] // all or none
			err := c.do(ctx, good, seq)
			refused, ok := errors.AsType[*outbox.RefusedError](err)
			require.True(t, ok, "%s of %s: %v", verb, s, err)
			require.Equal(t, s, refused.Rows[seq])
			require.ErrorContains(t, err, "nothing was changed")
		}
		require.ErrorContains(t, c.do(ctx, 999999), "row 999999 is not there")
		require.Error(t, c.do(ctx))
	}
	require.Equal(t, before, b.Entries())
}

func priorityVerb(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	f, p := b.inState(w, "f", outbox.Failed, false), b.inState(w, "p", outbox.Pending, false)
	require.NoError(t, b.Prioritize(t.Context(), 5, f, p))
	require.Equal(t, 5, b.entry(f).Priority)
	require.Equal(t, 5, b.entry(p).Priority)
	require.Equal(t, outbox.Failed, b.entry(f).Status)
}

func abandonVerb(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	f := b.inState(w, "k", outbox.Failed, false)
	b.Insert("k")
	require.Empty(t, w.Claim(10).Rows)
	require.NoError(t, b.Abandon(t.Context(), outbox.Retention{Abandoned: time.Hour}, f))
	e := b.entry(f)
	require.Equal(t, outbox.Abandoned, e.Status)
	require.Equal(t, "no", e.LastError, "the broker's words stay")
	require.InDelta(t, 3600, e.ExpiresAt.Sub(*e.LastAttemptAt).Seconds(), 30)
	require.Equal(t, []string{"k"}, Keys(w.Claim(10)), "its follower goes on")

	p := b.inState(w, "other", outbox.Pending, false)
	require.NoError(t, b.Abandon(t.Context(), outbox.Retention{Abandoned: -1}, p))
	require.Equal(t, "abandoned by an operator", b.entry(p).LastError)
	require.Nil(t, b.entry(p).ExpiresAt)
}

func heldVerbs(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", Partitions, time.Minute)
	first := b.inState(w, "k", outbox.Abandoned, true)
	second := b.inState(w, "l", outbox.Abandoned, true)
	b.Insert("k", "k", "l")
	require.Empty(t, w.Claim(10).Rows)
	held, err := b.Held(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]outbox.Held{"default": {Keys: 2, Behind: 3}}, held)

	require.NoError(t, b.Skip(ctx, outbox.Retention{}, second))
	e := b.entry(second)
	require.Equal(t, outbox.Abandoned, e.Status)
	require.False(t, e.Held)
	require.NotNil(t, e.ExpiresAt)
	require.Equal(t, []string{"l"}, Keys(w.Claim(10)), "the row behind the skipped one")
	require.Error(t, b.Skip(ctx, outbox.Retention{}, second), "it isn't held any more")

	require.NoError(t, b.Retry(ctx, first))
	c := w.Claim(10)
	require.Equal(t, []string{"k", "k", "k"}, Keys(c), "head first")
	require.Equal(t, first, c.Rows[0].Seq)
	held, err = b.Held(ctx)
	require.NoError(t, err)
	require.Empty(t, held)
}

func quarantineAlone(t *testing.T, b *Bench) {
	b.Insert("bad", "bad", "good")
	for range 2 {
		require.NotEmpty(t, b.Worker("victim", Partitions, time.Minute).Claim(1).Rows)
		b.Expire()
	}
	w := b.Worker("w1", Partitions, time.Minute)
	require.Equal(t, 2, b.Entries()[0].Losses)
	c := w.Claim(10)
	require.Equal(t, []string{"good"}, Keys(c), "a row in quarantine holds its key and nothing else")
	require.True(t, c.Quarantined)
	alone := outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 1, MaxAttempts: 5, Alone: true}
	c, err := b.Claim(t.Context(), alone)
	require.NoError(t, err)
	require.Equal(t, []string{"bad"}, Keys(c))
	// It was settled, so it has killed nobody.
	w.Settle(c, All(c, failed(-time.Second))...)
	require.Zero(t, b.Entries()[0].Losses)
	require.Equal(t, 1, b.Entries()[0].Attempts)
	require.Equal(t, []string{"bad", "bad"}, Keys(w.Claim(10)))
}

// crashes counts the claims that a row survives unsettled.
func (b *Bench) crashes(o outbox.Owner, maxAttempts int) int {
	b.T.Helper()
	_, err := b.EnsurePartitions(b.T.Context(), o.Target)
	require.NoError(b.T, err)
	for n := range 20 {
		leases, _, err := b.Acquire(b.T.Context(), o, Partitions)
		require.NoError(b.T, err)
		r := outbox.ClaimRequest{Target: "default", Worker: o.Worker, Leases: leases, Limit: 10, MaxAttempts: maxAttempts}
		c, err := b.Claim(b.T.Context(), r)
		require.NoError(b.T, err)
		if len(c.Rows) == 0 {
			r.Alone = true
			if c, err = b.Claim(b.T.Context(), r); err != nil || len(c.Rows) == 0 {
				require.NoError(b.T, err)
				return n
			}
		}
		b.Expire()
	}
	return 20
}

func crashesEnd(t *testing.T, b *Bench) {
	o := Owner("victim", time.Minute)
	b.Insert("bad")
	require.Equal(t, 5, b.crashes(o, 5))
	e := b.Entries()[0]
	require.Equal(t, outbox.Abandoned, e.Status)
	require.Equal(t, "crash", e.FailureClass)
	require.Contains(t, e.LastError, "each of the last 5 processes")
	require.Equal(t, 5, e.Losses)
	require.False(t, e.Held)
	require.NotNil(t, e.ExpiresAt)

	b.Exec("DELETE FROM outbox")
	b.Expire()
	b.Insert("bad")
	require.Equal(t, 5, b.crashes(o, 1), "three of them alone, whatever max_attempts is")
	b.Exec("DELETE FROM outbox")
	b.Expire()
	b.Insert("bad", "bad")
	o.OnAbandoned = outbox.Hold
	require.Equal(t, 7, b.crashes(o, 7))
	require.True(t, b.Entries()[0].Held)
	require.Nil(t, b.Entries()[0].ExpiresAt)
	require.Equal(t, outbox.Pending, b.Entries()[1].Status)
}

func handedBack(t *testing.T, b *Bench) {
	b.Insert("k")
	require.Len(t, b.Worker("victim", Partitions, time.Minute).Claim(1).Rows, 1)
	b.Expire()
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	require.Equal(t, 1, c.Rows[0].Losses)
	w.Settle(c, All(c, outbox.Outcome{Status: outbox.Pending, Unspent: true})...)
	e := b.Entries()[0]
	require.Equal(t, 1, e.Losses, "it was not tried, so it may still be what kills")
	require.Equal(t, 1, e.Attempts, "the lost claim; this one is given back")
	c = w.Claim(1)
	w.Settle(c, All(c, failed(time.Hour))...)
	require.Zero(t, b.Entries()[0].Losses)
	require.Equal(t, 1, b.Entries()[0].Attempts)
}
