package kafka

import (
	"errors"

	"github.com/IBM/sarama"

	"github.com/waybill-go/waybill/broker"
)

// ErrClosed is the error of a broker or a consumer that was closed.
var ErrClosed = errors.New("kafka: closed")

// refusal is what an error code of Kafka means for a batch. The zero value:
// nothing was stored, a later call may do better.
type refusal struct {
	class     broker.Class
	again     bool // Within the same call too.
	unclear   bool // It may be stored all the same.
	partly    bool // Because of some of its records.
	forgotten bool // The producer's id, epoch or sequence is not what Kafka expects.
}

var refusals = map[sarama.KError]refusal{
	sarama.ErrMessageSizeTooLarge:    {class: broker.Permanent, partly: true},
	sarama.ErrMessageSetSizeTooLarge: {class: broker.Permanent, partly: true},
	sarama.ErrInvalidRecord:          {class: broker.Permanent, partly: true},
	sarama.ErrInvalidTimestamp:       {class: broker.Permanent, partly: true},

	sarama.ErrInvalidTopic:                {class: broker.Permanent},
	sarama.ErrTopicAuthorizationFailed:    {class: broker.Permanent},
	sarama.ErrClusterAuthorizationFailed:  {class: broker.Permanent},
	sarama.ErrUnsupportedForMessageFormat: {class: broker.Permanent},
	sarama.ErrUnsupportedCompressionType:  {class: broker.Permanent},
	sarama.ErrPolicyViolation:             {class: broker.Permanent},

	sarama.ErrInvalidMessage:          {again: true}, // Corrupt on arrival.
	sarama.ErrUnknownTopicOrPartition: {again: true},
	sarama.ErrLeaderNotAvailable:      {again: true},
	sarama.ErrBrokerNotAvailable:      {again: true},
	sarama.ErrReplicaNotAvailable:     {again: true},
	sarama.ErrNotEnoughReplicas:       {again: true},
	sarama.ErrFencedLeaderEpoch:       {again: true},
	sarama.ErrUnknownLeaderEpoch:      {again: true},
	sarama.ErrThrottlingQuotaExceeded: {again: true},

	// The leader may have appended the batch before it found out.
	sarama.ErrNotLeaderForPartition:        {again: true, unclear: true},
	sarama.ErrRequestTimedOut:              {again: true, unclear: true},
	sarama.ErrNetworkException:             {again: true, unclear: true},
	sarama.ErrNotEnoughReplicasAfterAppend: {again: true, unclear: true},
	sarama.ErrKafkaStorageError:            {again: true, unclear: true},
	sarama.ErrUnknown:                      {unclear: true},

	sarama.ErrOutOfOrderSequenceNumber: {forgotten: true},
	sarama.ErrDuplicateSequenceNumber:  {forgotten: true},
	sarama.ErrUnknownProducerID:        {forgotten: true},
	sarama.ErrInvalidProducerEpoch:     {forgotten: true},
	sarama.ErrInvalidProducerIDMapping: {forgotten: true},
	sarama.ErrProducerFenced:           {forgotten: true},
}

// handshakeClass is the class of an error before anything was sent. A login that
// fails is Unavailable too: wrong credentials must not cost messages.
func handshakeClass(err error) broker.Class {
	if code, ok := errors.AsType[sarama.KError](err); ok && refusals[code].class == broker.Permanent {
		return broker.Permanent
	}
	return broker.Unavailable
}
