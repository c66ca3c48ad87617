package kafka

import (
	"crypto/tls"
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/broker"
)

// ErrClosed is the error of a broker or a consumer that was closed.
var ErrClosed = errors.New("kafka: closed")

// errBehind is why a message is held back whose key's earlier message failed.
var errBehind = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("kafka: not sent: an earlier message of its key was not stored"))

// errBesides is why a message isn't sent that would be in a transaction with one that
// can't be.
var errBesides = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("kafka: not sent: another message of its transaction can't be"))

// refusal is what an error code of Kafka means for a batch. The zero value:
// nothing was stored, a later call may do better, and whom it concerns isn't known.
type refusal struct {
	class   broker.Class
	scope   broker.Scope
	unclear bool // It may be stored all the same.
	partly  bool // Because of some of its records.
	stays   bool // Until somebody changes settings or rights.
}

// kgo tries again within the call what may pass, and what may be stored until that
// is clear.
var refusals = map[*kerr.Error]refusal{
	kerr.MessageTooLarge:    {class: broker.Permanent, scope: broker.ScopeRow, partly: true},
	kerr.RecordListTooLarge: {class: broker.Permanent, scope: broker.ScopeRow, partly: true},
	kerr.InvalidRecord:      {class: broker.Permanent, scope: broker.ScopeRow, partly: true},
	kerr.InvalidTimestamp:   {class: broker.Permanent, scope: broker.ScopeRow, partly: true},

	kerr.InvalidTopicException:              {scope: broker.ScopeTopic, stays: true},
	kerr.TopicAuthorizationFailed:           {scope: broker.ScopeTopic, stays: true},
	kerr.UnsupportedForMessageFormat:        {scope: broker.ScopeTopic, stays: true},
	kerr.UnsupportedCompressionType:         {scope: broker.ScopeTopic, stays: true},
	kerr.PolicyViolation:                    {scope: broker.ScopeTopic, stays: true},
	kerr.InvalidPartitions:                  {scope: broker.ScopeTopic, stays: true},
	kerr.InvalidReplicationFactor:           {scope: broker.ScopeTopic, stays: true},
	kerr.InvalidConfig:                      {scope: broker.ScopeTopic, stays: true},
	kerr.ClusterAuthorizationFailed:         {scope: broker.ScopeBroker, stays: true},
	kerr.TransactionalIDAuthorizationFailed: {scope: broker.ScopeBroker, stays: true},
	kerr.SaslAuthenticationFailed:           {scope: broker.ScopeBroker},
	kerr.UnsupportedSaslMechanism:           {scope: broker.ScopeBroker},
	kerr.IllegalSaslState:                   {scope: broker.ScopeBroker},

	kerr.UnknownTopicOrPartition:   {scope: broker.ScopeTopic},
	kerr.UnknownTopicID:            {scope: broker.ScopeTopic},
	kerr.LeaderNotAvailable:        {scope: broker.ScopeTopic},
	kerr.ReplicaNotAvailable:       {scope: broker.ScopeTopic},
	kerr.NotEnoughReplicas:         {scope: broker.ScopeTopic},
	kerr.FencedLeaderEpoch:         {scope: broker.ScopeTopic},
	kerr.UnknownLeaderEpoch:        {scope: broker.ScopeTopic},
	kerr.BrokerNotAvailable:        {scope: broker.ScopeBroker},
	kerr.ThrottlingQuotaExceeded:   {scope: broker.ScopeBroker},
	kerr.CoordinatorLoadInProgress: {scope: broker.ScopeBroker},

	// The leader may have appended the batch before it found out.
	kerr.NotLeaderForPartition:        {scope: broker.ScopeTopic, unclear: true},
	kerr.RequestTimedOut:              {scope: broker.ScopeTopic, unclear: true},
	kerr.NotEnoughReplicasAfterAppend: {scope: broker.ScopeTopic, unclear: true},
	kerr.KafkaStorageError:            {scope: broker.ScopeTopic, unclear: true},
	kerr.NetworkException:             {unclear: true},
	kerr.UnknownServerError:           {unclear: true},

	// kgo begins a new epoch, or a new id, and sends again.
	kerr.OutOfOrderSequenceNumber: {unclear: true},
	kerr.UnknownProducerID:        {unclear: true},
	kerr.InvalidProducerEpoch:     {unclear: true},
	kerr.InvalidProducerIDMapping: {unclear: true},
	kerr.ProducerFenced:           {unclear: true},
}

// codeOf is what Kafka answered, or nil.
func codeOf(err error) *kerr.Error {
	code, _ := errors.AsType[*kerr.Error](err)
	return code
}

// login says that a server refuses the login, or that we refuse the server.
func login(err error) bool {
	switch codeOf(err) {
	case kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState: // The last one: this port has no logins.
		return true
	}
	if _, distrusted := errors.AsType[*tls.CertificateVerificationError](err); distrusted {
		return true
	}
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" // What TLS says of a certificate that a server refuses.
}
