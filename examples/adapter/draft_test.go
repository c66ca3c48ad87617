package streams_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/examples/adapter"
)

// draft is the adapter as it may be after an hour: it publishes and consumes, promises more
// than it keeps, and gives nothing back.
type draft struct{ *streams.Broker }

// Capabilities promises Dedup, for which nothing compares ids.
func (draft) Capabilities() broker.Capabilities {
	return broker.Capabilities{System: "redis", Groups: true, Redelivery: true, Dedup: true}
}

// Publish forgets the attributes of CloudEvents, and what errors mean.
func (d draft) Publish(ctx context.Context, messages []broker.Message) error {
	plain := make([]broker.Message, len(messages))
	for i, m := range messages {
		m.CloudEvent = nil
		plain[i] = m
	}
	if err := d.Broker.Publish(ctx, plain); err != nil {
		return errors.New(err.Error())
	}
	return nil
}

func (d draft) Consume(ctx context.Context, topic, group string) (broker.Consumer, error) {
	c, err := d.Broker.Consume(ctx, topic, group)
	return draftConsumer{c}, err
}

type draftConsumer struct{ broker.Consumer }

// Release waits for MaxIdle, and so does what is out at Close.
func (draftConsumer) Release(context.Context, ...broker.Delivery) error { return nil }
func (draftConsumer) Close(context.Context) error                       { return nil }

// intended are the subtests that the draft fails, and what their logs say among other things.
var intended = map[string][]string{
	"Publish/RoundTrip": {
		"by the name that the protocol's binding gives it",
		"contract: A message arrives with its id, key, body and headers as they were published",
		"what to do: carry ID and Key beside the headers",
	},
	"Publish/Dedup": {
		"contract: With Capabilities.Dedup, a message that is published again under its id is stored once.",
		"without it: after a crash partners, who have no inbox, get the same message twice",
		"or leave it undeclared",
	},
	"Publish/UnknownTopic_F28":          {"contract: Publishing to a topic that doesn't exist fails soon, alone, and not for good.", "declare Config.Declared.AutoTopics"},
	"Redelivery/AfterClose":             {"of 11 messages didn't come again", "contract: What a consumer received and didn't acknowledge comes again to its group after Close.", "what to do: give back what is out in Close"},
	"Redelivery/AckNeverRunsAhead":      {"contract: An acknowledgement settles its own message and no other one that is still out."},
	"Redelivery/AfterRelease":           {"0 of 30 messages came", "contract: What is released comes again to its group", "what to do: hand released messages out again at once"},
	"Redelivery/ReleasedToo_AfterClose": {"contract: What was released comes again also if the consumer closes before that."},
	"Redelivery/StopAndRestart_C79":     {"contract: Messages go on coming, each until it is acknowledged"},
	"Groups/OwnPosition_C77":            {"contract: Who reads a topic under another group's name moves no position but its own."},
	"Lag/Declared":                      {"Config.Declared.Lag says that consumers are broker.Lagging, and that isn't so", "without it: status, metrics and alerts say a wrong lag", "what to do: implement Lag"},
	"Restart/Outage":                    {"the broker is Unavailable", "without it: an outage uses up the attempts of rows", "what to do: return broker.Scoped errors"},
}

const asDraft = "WAYBILL_ADAPTER_DRAFT"

// The suite says of the draft what it lacks, of that only, and for each what it breaks and
// what to do. The suite's failures must not be this test's: it runs in a process of its own.
func TestDraft(t *testing.T) {
	if os.Getenv(asDraft) != "" {
		runDraft(t)
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDraft$", "-test.v")
	cmd.Env = append(os.Environ(), asDraft+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "the draft passes:\n%s", out)
	logs := failures(string(out))
	for name, says := range intended {
		log, failed := logs[name]
		require.True(t, failed, "%s was to fail:\n%s", name, out)
		for _, what := range says {
			require.Contains(t, log, what, "of %s", name)
		}
		delete(logs, name)
	}
	require.Empty(t, logs, "what else fails")
	require.Contains(t, string(out), "not asked for: Capabilities.KeyOrder")
}

func runDraft(t *testing.T) {
	server := miniredis.RunT(t)
	brokertest.Run(t, brokertest.Config{
		Open: func(t *testing.T) broker.Broker {
			b, err := streams.Open(streams.Config{URL: "redis://" + server.Addr()})
			require.NoError(t, err)
			return draft{b}
		},
		Stop: func(t *testing.T) (start func()) {
			server.SetError("LOADING Redis is loading the dataset in memory")
			return func() { server.SetError("") }
		},
		Declared: brokertest.Declared{Outage: true, Lag: true},
		Wait:     2 * time.Second,
	})
}

var (
	began  = regexp.MustCompile(`^=== (?:RUN|CONT|NAME)\s+(\S+)`)
	result = regexp.MustCompile(`^\s*--- (FAIL|PASS): TestDraft/(\S+/\S+) `)
)

// failures are what failed of two levels, with what was logged of each.
func failures(out string) map[string]string {
	logs, failed := map[string]string{}, map[string]string{}
	var current string
	for line := range strings.Lines(out) {
		if m := began.FindStringSubmatch(line); m != nil {
			current = strings.TrimPrefix(m[1], "TestDraft/")
			continue
		}
		if m := result.FindStringSubmatch(line); m != nil {
			if m[1] == "FAIL" {
				failed[m[2]] = ""
			}
			continue
		}
		logs[current] += line
	}
	for name := range failed {
		failed[name] = logs[name]
	}
	return failed
}
