package outboxdb

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/waybill-go/waybill/outbox"
)

// brokerPrefix stands before the target in outbox_settings. The value is the broker that was
// last published to by that name.
const brokerPrefix = "broker:"

// NoteBroker records which broker an engine publishes to as target, and returns the one that
// it was before, if that is another one; nil: it is the same as far as both are known.
func (s *Store) NoteBroker(ctx context.Context, target string, is outbox.BrokerIdentity) (was *outbox.BrokerIdentity, err error) {
	value, found, err := readSetting(ctx, s.reader, brokerPrefix+target)
	if err != nil {
		return nil, explain(ctx, s.reader, fmt.Errorf("outbox: read which broker %s was: %w", target, err))
	}
	var recorded outbox.BrokerIdentity
	known := found && json.Unmarshal([]byte(value), &recorded) == nil // what somebody wrote over it is written anew
	if known && is.Differs(recorded) {
		was = &recorded
	} else { // one that is away doesn't tell its cluster
		is.System, is.Cluster = cmp.Or(is.System, recorded.System), cmp.Or(is.Cluster, recorded.Cluster)
	}
	if known && is == recorded {
		return nil, nil
	}
	if _, err := s.db.ExecContext(ctx, s.text("setting_write"), brokerPrefix+target, asText(is)); err != nil {
		return nil, fmt.Errorf("outbox: note which broker %s is: %w", target, err)
	}
	return was, nil
}
