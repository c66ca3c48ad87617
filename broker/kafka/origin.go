package kafka

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// origin is of which topic an offset is. A group keeps offsets by a topic's name, which one
// that was deleted and created again has, too. So each commit says by its metadata what it
// is of: the topic's id, and the cluster's, as tools that copy a group to another cluster
// copy metadata, and there the same messages are in a topic of another id.
type origin struct {
	cluster string
	topic   [16]byte
}

// originMark is before what metadata says; without it they are of somebody else.
const originMark = "waybill topic "

// known says whether both are.
func (o origin) known() bool { return o.cluster != "" && o.topic != [16]byte{} }

// replaces says whether o's topic was created after that of an earlier one was deleted.
func (o origin) replaces(earlier origin) bool {
	return o.known() && earlier.known() && o.cluster == earlier.cluster && o.topic != earlier.topic
}

// id is the topic's as Kafka's tools show it.
func (o origin) id() string { return base64.RawURLEncoding.EncodeToString(o.topic[:]) }

func (o origin) metadata() string { return originMark + o.id() + " of cluster " + o.cluster }

// originOf reads metadata. What says nothing is not known.
func originOf(metadata string) (o origin) {
	said, ours := strings.CutPrefix(metadata, originMark)
	id, cluster, complete := strings.Cut(said, " of cluster ")
	topic, err := base64.RawURLEncoding.DecodeString(id)
	if !ours || !complete || err != nil || len(topic) != len(o.topic) {
		return origin{}
	}
	return origin{cluster, [16]byte(topic)}
}

// asked asks which topic has the name now.
func (c *consumer) asked(ctx context.Context) (o origin, err error) {
	req := kmsg.NewPtrMetadataRequest() // kadm's may be a while old.
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &c.topic
	req.Topics, req.AllowAutoTopicCreation = append(req.Topics, topic), false
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return o, err
	}
	if resp.ClusterID != nil {
		o.cluster = *resp.ClusterID
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return o, fmt.Errorf("topic %s: %w", c.topic, err)
		}
		o.topic = t.TopicID
	}
	return o, nil
}

// offsets is called by kgo, between assigned and starts, with what the group committed.
func (c *consumer) offsets(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.origins = map[int32]origin{}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if p.Metadata != nil {
					c.origins[p.Partition] = originOf(*p.Metadata)
				}
			}
		}
	}
	return nil
}

// committing is a context in which commits say what they are of.
func (c *consumer) committing(ctx context.Context) context.Context {
	return kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		c.mu.Lock()
		client, from := c.client, origin{topic: c.source}
		c.mu.Unlock()
		from.cluster = clusterOf(client)
		if !from.known() { // Kafka before 3.1 has no ids.
			return nil
		}
		metadata := from.metadata()
		for _, t := range req.Topics {
			for i := range t.Partitions {
				t.Partitions[i].Metadata = &metadata
			}
		}
		return nil
	})
}
