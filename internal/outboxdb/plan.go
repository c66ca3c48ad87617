package outboxdb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/outbox"
)

// PlanMigration is what [Migrate] and, for each context, [InitTargets] would do. It
// changes nothing, and refuses what they would refuse.
func PlanMigration(ctx context.Context, db bun.IDB, partitions int, contexts map[string]outbox.Targets) (p migrate.Plan, err error) {
	if p.Steps, err = Migrations().Missing(ctx, db); err != nil {
		return p, err
	}
	have := map[string]string{}
	if len(p.Steps) == 0 || p.Steps[0].Version > 1 { // the table is there
		err := dbrows.Each(ctx, db, "SELECT name, value FROM outbox_settings", func(scan func(...any) error) error {
			var name, value string
			err := scan(&name, &value)
			have[name] = value
			return err
		})
		if err != nil {
			return p, fmt.Errorf("outbox: read settings: %w", err)
		}
	}
	write := func(name, value string) {
		p.Then = append(p.Then, "INSERT INTO outbox_settings (name, value) VALUES ("+migrate.Quote(name)+", "+migrate.Quote(value)+") ON CONFLICT (name) DO NOTHING")
	}
	if _, ok := have["partitions"]; !ok {
		n := 0
		if len(p.Steps) == 0 { // the tables are those that this build knows
			if n, err = madePartitions(ctx, db); err != nil {
				return p, fmt.Errorf("outbox: count partitions: %w", err)
			}
		}
		if n != 0 && partitions != 0 && n != partitions {
			return p, &outbox.PartitionsError{Have: n, Want: partitions}
		}
		write("partitions", strconv.Itoa(cmp.Or(n, partitions, outbox.DefaultPartitions)))
	} else if n, err := Partitions(ctx, db); err != nil {
		return p, err
	} else if partitions != 0 && n != partitions {
		return p, &outbox.PartitionsError{Have: n, Want: partitions}
	}
	for _, name := range slices.Sorted(maps.Keys(contexts)) {
		t := contexts[name]
		if _, ok := have[targetsPrefix+name]; ok {
			if err := CheckTargets(ctx, db, name, t); err != nil {
				return p, err
			}
			continue
		}
		value, err := json.Marshal(t.Sorted())
		if err := errors.Join(t.Check(), err); err != nil {
			return p, err
		}
		write(targetsPrefix+name, string(value))
		for _, target := range append([]string{t.Broker}, t.External...) {
			p.Then = append(p.Then, "INSERT INTO outbox_lanes (target) VALUES ("+migrate.Quote(target)+") ON CONFLICT (target) DO NOTHING")
		}
	}
	return p, nil
}
