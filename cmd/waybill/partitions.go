package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

type partitionsCmd struct {
	Provider string `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	Target   string `placeholder:"BROKER" help:"Only of this target broker."`
}

func (p partitionsCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string]map[string][]outbox.Owned{} // by provider and target
	err := c.eachOutbox(ctx, p.Provider, func(_ *databases, provider string, s *outboxdb.Store) error {
		owned, err := s.Owners(ctx)
		if err != nil {
			return err
		}
		all[provider] = map[string][]outbox.Owned{}
		for _, o := range owned {
			if p.Target == "" || p.Target == o.Target {
				all[provider][o.Target] = append(all[provider][o.Target], o)
			}
		}
		return nil
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "TARGET", "PARTITION", "OWNER", "LEASE UNTIL", "UNFINISHED", "OLDEST", "HELD")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, target := range slices.Sorted(maps.Keys(all[provider])) {
			for _, n := range all[provider][target] {
				t.row(provider, append([]string{target, strconv.Itoa(n.Partition)}, cells(n)...)...)
			}
		}
	}
	return t.flush(err, "No partition has an owner or a row yet.")
}

func cells(o outbox.Owned) []string {
	owner, lease, oldest, held := "", "", "", ""
	if o.Owner != nil {
		owner = *o.Owner
	}
	switch {
	case o.Until != nil && o.Live:
		lease = when(*o.Until)
		if o.Owner != nil && liveness.Here().State(*o.Owner) == liveness.Dead {
			lease += ": its process is dead"
		}
	case o.Until != nil && o.Owner != nil:
		lease = fmt.Sprintf("%s: it has run out", when(*o.Until))
	}
	if o.OldestSeconds != nil {
		oldest = glance(time.Duration(*o.OldestSeconds * float64(time.Second)))
	}
	if o.Held > 0 {
		held = strconv.FormatInt(o.Held, 10)
	}
	return []string{owner, lease, strconv.FormatInt(o.Unfinished, 10), oldest, held}
}
