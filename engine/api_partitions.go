package engine

import (
	"context"
	"net/http"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// partitionsReport is the answer of /api/partitions: by provider and target.
type partitionsReport struct {
	Providers map[string]map[string][]outbox.Owned `json:"providers"` // null: not known
	Errors    map[string]string                    `json:"errors"`    // why not, by provider
}

func (e *Engine) partitions(r *http.Request) (any, error) {
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	of, err := e.chosen("", (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	owners, errs := fromEach(of, func(d *database) (all []outbox.Owned, err error) {
		f, known := d.owners.get(r.Context())
		if !known {
			return nil, d.explain(context.DeadlineExceeded)
		}
		return f.value, f.err
	})
	report := partitionsReport{map[string]map[string][]outbox.Owned{}, map[string]string{}}
	for name, err := range errs {
		report.Providers[name], report.Errors[name] = nil, e.tell(r, err).text
	}
	for name, all := range owners {
		targets := map[string][]outbox.Owned{}
		for _, o := range all {
			targets[o.Target] = append(targets[o.Target], o)
		}
		report.Providers[name] = targets
	}
	return report, nil
}

// partitionOwners counts the rows of each partition, too: of a long queue that is dear, so it is
// done once for all pages that are open.
func (d *database) partitionOwners(ctx context.Context) (f found[[]outbox.Owned]) {
	f.err = d.inOutbox(ctx, func(ctx context.Context, s *outboxdb.Store) (err error) {
		f.value, err = s.Owners(ctx)
		return err
	})
	return f
}
