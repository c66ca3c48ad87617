package kafka_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/waittest"
)

// brisk makes groups of little patience, and topics of few partitions. Kafka
// allows no session timeout below 6 s.
func brisk(partitions int) func(*kafka.Config) {
	return func(c *kafka.Config) {
		c.Partitions = partitions
		c.SessionTimeout = 6 * time.Second
		c.RebalanceTimeout = 3 * time.Second
	}
}

func admin(t testing.TB) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(server(t)))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

// members are the ids of a group's members, once there are n and the group has
// come to rest.
func members(t testing.TB, topic string, n int) []string {
	t.Helper()
	a := admin(t)
	var ids []string
	waittest.Until(t, func() bool {
		groups, err := a.DescribeGroups(bounded(t), "group."+topic)
		group := groups["group."+topic]
		if err != nil || group.State != "Stable" {
			return false
		}
		ids = nil
		for _, m := range group.Members {
			ids = append(ids, m.MemberID)
		}
		slices.Sort(ids)
		return len(ids) == n
	})
	return ids
}

// committed are the offsets of the group by partition, without those that have
// none.
func committed(t testing.TB, topic, group string) map[int32]int64 {
	t.Helper()
	offsets, err := admin(t).FetchOffsets(bounded(t), group)
	require.NoError(t, err)
	all := map[int32]int64{}
	for partition, o := range offsets[topic] {
		if o.At >= 0 {
			all[partition] = o.At
		}
	}
	return all
}

func commits(t testing.TB, topic string, want map[int32]int64) {
	t.Helper()
	waittest.Until(t, func() bool {
		return maps.Equal(want, committed(t, topic, "group."+topic))
	}, "want %v", want)
}

// F-73: whoever holds a message for longer than all timeouts of the group keeps
// its partition, and goes on with the messages behind it.
func TestConsume_F73_LongHandlerKeepsItsPartition(t *testing.T) {
	t.Parallel()
	b := open(t, brisk(1))
	name := topic(t, b)
	c := join(t, b, name)
	require.NoError(t, b.Publish(bounded(t), run(name, "key", 0, 1)))
	held := receive(t, c, 1)
	other := join(t, b, name) // It would get the partition.
	before := members(t, name, 2)

	n, pace := 1, time.NewTicker(100*time.Millisecond)
	defer pace.Stop()
	for start := time.Now(); time.Since(start) < 7*time.Second; n++ {
		<-pace.C
		require.NoError(t, b.Publish(bounded(t), run(name, "key", n, 1)))
		got := receive(t, c, 1)
		require.Equal(t, strconv.Itoa(n), string(got[0].Body))
		require.NoError(t, c.Ack(bounded(t), got...))
	}
	require.False(t, isLost(held[0]))
	require.Equal(t, before, members(t, name, 2), "nobody had to join again")
	require.Empty(t, committed(t, name, "group."+name))
	require.NoError(t, c.Ack(bounded(t), held...))
	commits(t, name, map[int32]int64{0: int64(n)})
	_, err := other.Receive(deadline(t), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// F-70, F-74: a member joins, and leaves again, while messages are in hand. The
// partitions that stay are not touched: what is in hand isn't lost, isn't
// delivered again, and can be acknowledged. Those that go return with what wasn't
// acknowledged.
func TestConsume_F70_F74_RebalanceLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*kafka.Config){"usual": nil, "with short timeouts": brisk(8)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := open(t, change)
			name := topic(t, b)
			first := join(t, b, name)
			require.NoError(t, b.Publish(bounded(t), spread(name, 200)))
			held := receive(t, first, 200)

			second := join(t, open(t, change), name)
			taken, err := second.Receive(bounded(t), 200)
			require.NoError(t, err)
			lost := slices.DeleteFunc(slices.Clone(held), func(d broker.Delivery) bool { return !isLost(d) })
			kept := slices.DeleteFunc(slices.Clone(held), isLost)
			require.NotEmpty(t, kept)
			taken = append(taken, receive(t, second, len(lost)-len(taken))...)
			require.ElementsMatch(t, ids(lost), ids(taken))
			require.NoError(t, second.Close(bounded(t)))

			require.ElementsMatch(t, ids(lost), ids(receive(t, first, len(lost))), "they come back")
			more := spread(name, 200)
			require.NoError(t, b.Publish(bounded(t), more))
			var sent []string
			for _, m := range more {
				sent = append(sent, m.ID)
			}
			require.ElementsMatch(t, sent, ids(receive(t, first, 200)), "and nothing else comes again")
			require.False(t, slices.ContainsFunc(kept, isLost))

			require.NoError(t, first.Ack(bounded(t), kept...))
			require.NoError(t, first.Close(bounded(t)))
			third := join(t, b, name)
			again := receive(t, third, 400-len(kept))
			require.ElementsMatch(t, append(ids(lost), sent...), ids(again), "what stayed was acknowledged")
		})
	}
}

// F-70: a partition that is taken away waits for what is in hand. What is
// acknowledged meanwhile doesn't come to the next member.
func TestConsume_F70_RevokeWaitsForWhatIsInHand(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := topic(t, b)
	first := join(t, b, name)
	require.NoError(t, b.Publish(bounded(t), spread(name, 100)))
	held := receive(t, first, 100)
	second := join(t, open(t, nil), name)
	members(t, name, 2)
	require.Empty(t, some(t, first)) // By now it knows that it has to give.
	require.NoError(t, first.Ack(bounded(t), held...))
	more := spread(name, 100)
	require.NoError(t, b.Publish(bounded(t), more))

	all := map[string]bool{}
	for _, d := range receive(t, second, 1) {
		all[d.ID] = true
	}
	for len(all) < 100 {
		for _, c := range []broker.Consumer{first, second} {
			for _, d := range some(t, c) {
				all[d.ID] = true
			}
		}
	}
	for _, m := range more {
		require.True(t, all[m.ID])
	}
	require.Len(t, all, 100, "nothing that was acknowledged")
}

// memberVar makes a process of this test binary a member of a group on the topic
// that it names.
const memberVar = "WAYBILL_TEST_MEMBER"

// patientVar gives that process a session that outlasts the test.
const patientVar = "WAYBILL_TEST_PATIENT"

// patient makes groups that wait for a silent member longer than a test lasts.
func patient(c *kafka.Config) { c.SessionTimeout, c.RebalanceTimeout = 10*wait, 10*wait }

// kept says that the process doesn't acknowledge d.
func kept(d broker.Delivery) bool {
	n, err := strconv.Atoi(string(d.Body))
	return err == nil && n >= 50
}

// member says what it keeps, until it is killed.
func member(ctx context.Context, topic string) error {
	conf := kafka.Config{Addresses: []string{os.Getenv("WAYBILL_KAFKA")}}
	brisk(4)(&conf)
	if os.Getenv(patientVar) != "" {
		patient(&conf)
	}
	b, err := kafka.Open(ctx, conf)
	if err != nil {
		return err
	}
	c, err := b.Consume(ctx, topic, "group."+topic)
	if err != nil {
		return err
	}
	for {
		got, err := c.Receive(ctx, 10)
		if err != nil {
			return err
		}
		for _, d := range got {
			if kept(d) {
				fmt.Println(d.ID)
			} else if err := c.Ack(ctx, d); err != nil {
				return err
			}
		}
	}
}

// F-68, F-70: a member dies. The others get its partitions with everything that
// it hadn't acknowledged, and nothing that it had, soon after its session timeout.
// Conformance: A74.
func TestConsume_F68_F70_KilledMember(t *testing.T) {
	t.Parallel()
	b := open(t, brisk(4))
	name := topic(t, b)
	c := join(t, b, name)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberVar+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	members(t, name, 2)
	require.NoError(t, b.Publish(bounded(t), spread(name, 100)))

	said := make(chan string)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said <- lines.Text()
		}
		close(said)
	}()
	var theirs []string
	ours := map[string]bool{}
	for len(ours)+len(theirs) < 50 {
		select {
		case id := <-said:
			theirs = append(theirs, id)
		default:
			for _, d := range some(t, c) {
				require.NoError(t, c.Ack(bounded(t), d))
				if kept(d) {
					ours[d.ID] = true
				}
			}
		}
	}
	require.NotEmpty(t, theirs)
	waittest.Until(t, func() bool {
		var sum int64
		for _, offset := range committed(t, name, "group."+name) {
			sum += offset
		}
		return sum == int64(50+len(ours))
	})

	require.NoError(t, cmd.Process.Kill())
	died := time.Now()
	require.ElementsMatch(t, theirs, ids(receive(t, c, len(theirs))))
	t.Logf("all that was left came after %v", time.Since(died))
	require.NoError(t, b.Publish(bounded(t), []broker.Message{message(name, "last", "last")}))
	require.Equal(t, "last", string(receive(t, c, 1)[0].Body), "nothing else came")
}

// N1: whoever joins after kill -9 on the same host has the partitions of the dead at once,
// however long their session timeout is.
func TestConsume_N1_DeadMembersOfThisHostAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := open(t, patient)
	name := topic(t, b)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberVar+"="+name, patientVar+"=1")
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	first := join(t, b, name)
	members(t, name, 2)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // "signal: killed"

	second := join(t, b, name)
	require.NoError(t, b.Publish(bounded(t), spread(name, 100)))
	members(t, name, 2)
	got := map[string]bool{}
	waittest.Until(t, func() bool {
		for _, c := range []broker.Consumer{first, second} {
			for _, d := range some(t, c) {
				got[d.ID] = true
			}
		}
		return len(got) == 100
	})
}

// some is what c has now.
func some(t testing.TB, c broker.Consumer) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*tick)
	defer cancel()
	got, err := c.Receive(ctx, 100)
	if err != nil {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	return got
}

// C-73 watermark_independent_per_partition, second_consumer_resumes_past_committed:
// a message in hand holds back its own partition only, and who comes next gets what
// is behind the watermark of each.
func TestCommit_C73_WatermarkOfEachPartition(t *testing.T) {
	t.Parallel()
	b := open(t, brisk(2))
	name := topic(t, b)
	require.NoError(t, b.Publish(bounded(t), spread(name, 60)))
	log := map[int32][]string{}
	for _, m := range stored(t, name) {
		log[m.Partition] = append(log[m.Partition], string(m.Value))
	}
	require.Greater(t, len(log[0]), 3)
	require.Greater(t, len(log[1]), 3)
	c := join(t, b, name)
	for _, d := range receive(t, c, 60) {
		if string(d.Body) != log[0][2] {
			require.NoError(t, c.Ack(bounded(t), d))
		}
	}
	want := map[int32]int64{0: 2, 1: int64(len(log[1]))}
	commits(t, name, want)
	require.NoError(t, c.Close(bounded(t)))
	require.Equal(t, want, committed(t, name, "group."+name))

	second := join(t, b, name)
	var again []string
	for _, d := range receive(t, second, len(log[0])-2) {
		again = append(again, string(d.Body))
		require.NoError(t, second.Ack(bounded(t), d))
	}
	require.Equal(t, log[0][2:], again)
	want[0] = int64(len(log[0]))
	commits(t, name, want)
}

// C-73 tolerates_non_contiguous_offsets_from_compacted_topic: the gaps are neither
// waited for nor committed too early.
func TestCommit_C73_CompactedTopic(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	name := "test." + uuid.NewString()
	value := func(s string) *string { return &s }
	_, err := admin(t).CreateTopic(bounded(t), 1, -1, map[string]*string{
		"cleanup.policy": value("compact"), "segment.ms": value("50"), "min.cleanable.dirty.ratio": value("0.001"),
	}, name)
	require.NoError(t, err)
	require.NoError(t, b.EnsureTopics(bounded(t), name)) // Waits until it is ready.
	// Kafka compacts what is not in the last segment, every 15 s.
	n := 0
	waittest.Until(t, func() bool {
		require.NoError(t, b.Publish(bounded(t), []broker.Message{
			message(name, "often", fmt.Sprint(n)), message(name, fmt.Sprint("once-", n), fmt.Sprint(n)),
		}))
		n++
		return n > 5 && len(stored(t, name)) < 2*n-3
	})

	// Kafka may go on to compact. What was sent last stays.
	c := join(t, b, name)
	var got []broker.Delivery
	for last := fmt.Sprint("once-", n-1); len(got) == 0 || got[len(got)-1].Key != last; {
		got = append(got, receive(t, c, 1)...)
	}
	before, err := strconv.ParseInt(string(got[len(got)-3].Body), 10, 64)
	require.NoError(t, err)
	offset := 2 * before // of two messages in each round
	if got[len(got)-3].Key != "often" {
		offset++
	}
	require.NoError(t, c.Ack(bounded(t), got[1:len(got)-2]...))
	require.NoError(t, c.Ack(bounded(t), got[len(got)-1]))
	require.Empty(t, committed(t, name, "group."+name))
	require.NoError(t, c.Ack(bounded(t), got[0]))
	commits(t, name, map[int32]int64{0: offset + 1})
	require.NoError(t, c.Ack(bounded(t), got[len(got)-2]))
	commits(t, name, map[int32]int64{0: int64(2 * n)})
	lag, err := c.(broker.Lagging).Lag(bounded(t))
	require.NoError(t, err)
	require.Zero(t, lag)
}

// Partitions that are added while a topic is written and read are read from their start:
// somebody may have written to them before a member has heard of them.
func TestGroup_PartitionsThatAreAddedAreReadFromTheirStart(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *kafka.Config) {
		c.Partitions, c.Options = 1, []kgo.Opt{kgo.MetadataMaxAge(time.Second)}
	})
	name := topic(t, b)
	c := join(t, b, name)
	require.NoError(t, b.Publish(bounded(t), spread(name, 50)))
	require.NoError(t, c.Ack(bounded(t), receive(t, c, 50)...))
	added, err := admin(t).UpdatePartitions(bounded(t), 4, name)
	require.NoError(t, err)
	require.NoError(t, added.Error())
	waittest.Until(t, func() bool {
		topics, err := admin(t).ListTopics(bounded(t), name)
		return err == nil && len(topics[name].Partitions) == 4
	}, "they are there")
	other := open(t, nil) // It knows of all of them at once.
	require.NoError(t, other.Publish(bounded(t), spread(name, 200)))
	bodies := map[string]bool{}
	for _, d := range receive(t, c, 200) {
		bodies[string(d.Body)] = true
	}
	require.Len(t, bodies, 200)
	used := map[int32]bool{}
	for _, r := range stored(t, name) {
		used[r.Partition] = true
	}
	require.Len(t, used, 4)
}
