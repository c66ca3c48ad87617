package kafka

import (
	"errors"

	"github.com/IBM/sarama"

	"github.com/waybill-go/waybill/broker"
)

// ErrClosed is the error of a broker or a consumer that was closed.
var ErrClosed = errors.New("kafka: closed")

// refusal is what an error code of Kafka means for a batch. The zero value:
// nothing was stored, a later call may do better, and whom it concerns isn't known.
type refusal struct {
	class     broker.Class
	scope     broker.Scope
	again     bool // Within the same call too.
	unclear   bool // It may be stored all the same.
	partly    bool // Because of some of its records.
	stays     bool // Until somebody changes settings or rights.
	forgotten bool // The producer's id, epoch or sequence is not what Kafka expects.
}

var refusals = map[sarama.KError]refusal{
	sarama.ErrMessageSizeTooLarge:    {class: broker.Permanent, scope: broker.ScopeRow, partly: true},
	sarama.ErrMessageSetSizeTooLarge: {class: broker.Permanent, scope: broker.ScopeRow, partly: true},
	sarama.ErrInvalidRecord:          {class: broker.Permanent, scope: broker.ScopeRow, partly: true},
	sarama.ErrInvalidTimestamp:       {class: broker.Permanent, scope: broker.ScopeRow, partly: true},

	sarama.ErrInvalidTopic:                       {scope: broker.ScopeTopic, stays: true},
	sarama.ErrTopicAuthorizationFailed:           {scope: broker.ScopeTopic, stays: true},
	sarama.ErrUnsupportedForMessageFormat:        {scope: broker.ScopeTopic, stays: true},
	sarama.ErrUnsupportedCompressionType:         {scope: broker.ScopeTopic, stays: true},
	sarama.ErrPolicyViolation:                    {scope: broker.ScopeTopic, stays: true},
	sarama.ErrClusterAuthorizationFailed:         {scope: broker.ScopeBroker, stays: true},
	sarama.ErrTransactionalIDAuthorizationFailed: {scope: broker.ScopeBroker, stays: true},
	sarama.ErrSASLAuthenticationFailed:           {scope: broker.ScopeBroker},

	sarama.ErrInvalidMessage:          {again: true}, // Corrupt on arrival.
	sarama.ErrUnknownTopicOrPartition: {scope: broker.ScopeTopic, again: true},
	sarama.ErrLeaderNotAvailable:      {scope: broker.ScopeTopic, again: true},
	sarama.ErrReplicaNotAvailable:     {scope: broker.ScopeTopic, again: true},
	sarama.ErrNotEnoughReplicas:       {scope: broker.ScopeTopic, again: true},
	sarama.ErrFencedLeaderEpoch:       {scope: broker.ScopeTopic, again: true},
	sarama.ErrUnknownLeaderEpoch:      {scope: broker.ScopeTopic, again: true},
	sarama.ErrBrokerNotAvailable:      {scope: broker.ScopeBroker, again: true},
	sarama.ErrThrottlingQuotaExceeded: {scope: broker.ScopeBroker, again: true},

	// The leader may have appended the batch before it found out.
	sarama.ErrNotLeaderForPartition:        {scope: broker.ScopeTopic, again: true, unclear: true},
	sarama.ErrRequestTimedOut:              {scope: broker.ScopeTopic, again: true, unclear: true},
	sarama.ErrNotEnoughReplicasAfterAppend: {scope: broker.ScopeTopic, again: true, unclear: true},
	sarama.ErrKafkaStorageError:            {scope: broker.ScopeTopic, again: true, unclear: true},
	sarama.ErrNetworkException:             {again: true, unclear: true},
	sarama.ErrUnknown:                      {unclear: true},

	sarama.ErrOutOfOrderSequenceNumber: {forgotten: true},
	sarama.ErrDuplicateSequenceNumber:  {forgotten: true},
	sarama.ErrUnknownProducerID:        {forgotten: true},
	sarama.ErrInvalidProducerEpoch:     {forgotten: true},
	sarama.ErrInvalidProducerIDMapping: {forgotten: true},
	sarama.ErrProducerFenced:           {forgotten: true},
}

// scopeOf is the scope that err has, or that of its code.
func scopeOf(err error) broker.Scope {
	if scope := broker.ScopeOf(err); scope != broker.ScopeUnknown {
		return scope
	}
	code, _ := errors.AsType[sarama.KError](err)
	return refusals[code].scope
}
