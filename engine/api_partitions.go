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
		err = d.inOutbox(r.Context(), func(ctx context.Context, s *outboxdb.Store) error {
			all, err = s.Owners(ctx)
			return err
		})
		return all, err
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
