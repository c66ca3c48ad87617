package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func TestInHand_HasABoundWhateverTheBrokerTakes(t *testing.T) {
	for cfg, want := range map[outbox.Config][2]int{
		{}:                          {1500, 1000},
		{BatchSize: 100}:            {800, 800},
		{BatchSize: 250}:            {1000, 1000},
		{BatchSize: 1000}:           {3000, 2000},
		{BatchSize: 10, Calls: 1}:   {10, 10},
		{BatchSize: 1000, Calls: 2}: {2000, 2000},
	} {
		all, unanswered := mostInHand(cfg.WithDefaults())
		require.Equal(t, want[0], all, "%+v", cfg)
		require.Equal(t, want[1], unanswered, "%+v", cfg)
	}
}

// A claim begins only if there is room for it: of the lane's calls, of a batch, and of what the
// lane may have in hand.
func TestInHand_BoundsTheNextClaim(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		what                        string
		out, hand, unanswered, room int
		careful                     time.Duration
	}{
		{"nothing is out", 0, 0, 0, 100, 0},
		{"a batch at most", 1, 50, 50, 100, 0},
		{"what is left", 3, 320, 120, 80, 0},
		{"what is left is too little beside so much", 3, 395, 195, 0, 0},
		{"as much is out as may be", 3, 400, 100, 0, 0},
		{"what the broker may have", 2, 200, 150, 50, 0},
		{"the broker has what it may", 2, 200, 200, 0, 0},
		{"all calls are out", 4, 8, 8, 0, 0},
		{"after a claim that failed", 0, 0, 0, 0, time.Second},
	} {
		l := &lane{r: &Relay{cfg: Config{Outbox: outbox.Config{Calls: 4, BatchSize: 100}}}, most: 400, mostUnanswered: 200, out: c.out, unanswered: c.unanswered, track: newTrack(nil), careful: now.Add(c.careful)}
		l.track.parts[0] = &partTrack{hand: c.hand}
		require.Equal(t, c.room, l.room(now), c.what)
	}
}

// O5: claims together have no more bytes than the process may, and a row that is
// larger than what is left is no obstacle for ever.
func TestBudget_BoundsBytesOfTheProcess(t *testing.T) {
	b := newBudget(3 * claimBytes)
	require.Equal(t, claimBytes, b.reserve())
	require.Equal(t, claimBytes, b.reserve())
	b.adjust(claimBytes, claimBytes*3/2) // one row
	require.Equal(t, claimBytes/2, b.reserve())
	require.Zero(t, b.reserve())
	select {
	case <-b.freed:
		require.Fail(t, "nothing is free")
	default:
	}
	b.release(claimBytes * 3 / 2)
	<-b.freed
	require.Equal(t, claimBytes, b.reserve())
}

func TestQuarantine_NothingElseIsOut(t *testing.T) {
	now := time.Unix(1000, 0)
	q := newQuarantine()
	require.True(t, q.begin())
	require.True(t, q.open(now))
	require.True(t, q.want(now))
	require.False(t, q.want(now), "one at a time")
	require.False(t, q.begin(), "others don't begin while one waits")
	require.False(t, q.enter(), "one is out")
	change := q.change()
	q.end()
	<-change
	require.True(t, q.enter())
	require.False(t, q.begin())
	require.False(t, q.open(now))
}

func TestQuarantine_HasAQuarterOfTheTime(t *testing.T) {
	now := time.Unix(1000, 0)
	q := newQuarantine()
	require.True(t, q.want(now))
	require.True(t, q.enter())
	now = now.Add(2 * time.Second)
	q.leave(now)
	require.True(t, q.begin())
	q.end()
	require.False(t, q.want(now.Add(6*time.Second-1)))
	require.Equal(t, now.Add(6*time.Second), q.opensAt())
	require.True(t, q.want(now.Add(6*time.Second)))
}

func TestHorizon_RisesOnceAllThatWroteHaveEnded(t *testing.T) {
	h := &horizon{}
	h.sampled(HorizonSample{10, []string{"a", "b"}})
	require.Zero(t, h.at())
	require.Equal(t, []string{"a", "b"}, h.heldUp())
	h.sampled(HorizonSample{20, []string{"b", "c"}})
	require.Zero(t, h.at(), "b may still bring 7")
	h.sampled(HorizonSample{30, []string{"c", "d"}})
	require.EqualValues(t, 10, h.at(), "c began after 10 was visible")
	require.Equal(t, []string{"c", "d"}, h.heldUp(), "30 is the next")
	h.sampled(HorizonSample{30, nil})
	require.EqualValues(t, 30, h.at())
	h.sampled(HorizonSample{40, nil})
	require.EqualValues(t, 40, h.at(), "nobody writes, or it is SQLite")
	h.sampled(HorizonSample{5, nil})
	require.EqualValues(t, 40, h.at())
}

func TestHorizon_AsksOnceASecondAndForSomething(t *testing.T) {
	now := time.Unix(1000, 0)
	h := &horizon{}
	require.False(t, h.asks(now, 0))
	require.True(t, h.asks(now, 1))
	require.False(t, h.asks(now.Add(horizonEvery-1), 1))
	require.True(t, h.asks(now.Add(horizonEvery), 1))
}

// A row in quarantine waits until nothing else is out: chosen as the second of two, it
// would wait for the first, which nobody has claimed.
func TestClaims_ARowInQuarantineIsTheFirst(t *testing.T) {
	l := &lane{r: &Relay{gate: NewGate(), cfg: Config{Outbox: outbox.Config{}.WithDefaults()}}, most: 1000, mostUnanswered: 1000, wake: newWake()}
	l.breakers = newBreakers(func() float64 { return 0 })
	l.track = newTrack(l.breakers)
	l.track.take(0)
	k := l.track.know(QueueRow{Key: 1})
	l.track.list(k, QueueRow{Seq: 1, Key: 1, Losses: quarantineFrom})
	l.track.update(k)
	c, _ := l.choose(false)
	require.Nil(t, c)
	c, _ = l.choose(true)
	require.True(t, c.alone)
}
