package engine

import (
	"context"
	"net/http"

	"github.com/waybill-go/waybill/subscription"
)

// knownReport is the answer of /api/subscriptions/known.
type knownReport struct {
	Providers map[string][]subscription.Listed `json:"providers"`
}

// knownSubscriptions are those that the databases know of, also of other programs and of
// long ago.
func (e *Engine) knownSubscriptions(r *http.Request) (any, error) {
	p := paramsOf(r)
	provider := p.text("provider")
	if err := p.check(); err != nil {
		return nil, err
	}
	of, err := e.chosen(provider, anyDatabase)
	if err != nil {
		return nil, err
	}
	lists, errs := fromEach(of, func(d *database) (list []subscription.Listed, err error) {
		if !e.consumes(d.provider.Name()) && !d.observed {
			return []subscription.Listed{}, nil // there may be no table
		}
		err = d.inInbox(r.Context(), func(ctx context.Context, _ *subscription.DeadLetters) error {
			list, err = subscription.List(ctx, d.provider.Reader())
			return err
		})
		return list, err
	})
	if len(errs) > 0 {
		return nil, first(errs)
	}
	return knownReport{lists}, nil
}
