package outboxdb

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/outbox"
)

// brokerPrefix stands before the target in outbox_settings. The value is the broker that was
// last published to by that name.
const brokerPrefix = "broker:"

// NoteBrokers records to which broker an engine publishes as each target, and returns those
// that they were before, of targets for which that was another one, as far as both are known.
func (s *Store) NoteBrokers(ctx context.Context, are map[string]outbox.BrokerIdentity) (were map[string]outbox.BrokerIdentity, err error) {
	recorded := map[string]outbox.BrokerIdentity{}
	err = dbrows.Each(ctx, s.reader, s.text("settings_like"), func(scan func(...any) error) error {
		var name, value string
		if err := scan(&name, &value); err != nil {
			return err
		}
		var was outbox.BrokerIdentity
		if json.Unmarshal([]byte(value), &was) == nil { // what somebody wrote over it is written anew
			recorded[strings.TrimPrefix(name, brokerPrefix)] = was
		}
		return nil
	}, len(brokerPrefix), brokerPrefix)
	if err != nil {
		return nil, explain(ctx, s.reader, fmt.Errorf("outbox: read which brokers there were: %w", err))
	}
	were = map[string]outbox.BrokerIdentity{}
	for target, is := range are {
		was, known := recorded[target]
		differs := known && is.Differs(was)
		if !differs { // one that is away doesn't tell its cluster
			is.System, is.Cluster = cmp.Or(is.System, was.System), cmp.Or(is.Cluster, was.Cluster)
		}
		if known && is == was {
			continue
		}
		if _, err := s.db.ExecContext(ctx, s.text("setting_write"), brokerPrefix+target, asText(is)); err != nil {
			return were, fmt.Errorf("outbox: note which broker %s is: %w", target, err)
		}
		if differs {
			were[target] = was
		}
	}
	return were, nil
}
