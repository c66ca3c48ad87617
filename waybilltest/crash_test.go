package waybilltest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/waybilltest"
)

// A service that is killed anywhere does all that it was asked to do, once.
func TestCrash_OnPostgres(t *testing.T) {
	onPostgres(t)
	runs := 0
	type service struct {
		*billing
		kit *waybilltest.Kit
	}
	waybilltest.Crash(t, func(k *waybilltest.Kit) service {
		b := newBilling(k.Units(billingDomain))
		k.Start(b.context())
		return service{b, k}
	}, func(ctx context.Context, b service) error {
		return b.units.Do(ctx, func(ctx context.Context) error { return command.Send(ctx, BillFee{"l1"}, command.Once("fee")) })
	}, func(t *testing.T, b service) {
		t.Helper()
		runs++
		charge, err := b.charges.Get(t.Context(), "l1")
		require.NoError(t, err)
		require.EqualValues(t, 1, charge.Version())
		require.Len(t, ids(b.kit.Sent("default", "billing.charge")), 1, "published more than once perhaps, and as one")
	})
	require.GreaterOrEqual(t, runs, 1+2*(2+2+1), "two commits, two publications, an acknowledgement")
}

// ids are the different messages among all.
func ids(all []waybilltest.Message) map[string]bool {
	different := map[string]bool{}
	for _, m := range all {
		different[m.ID] = true
	}
	return different
}

// Of too many points some are chosen, from the first to nearly the last.
func TestCrash_IsBounded(t *testing.T) {
	t.Parallel()
	few, many := waybilltest.Points(200), waybilltest.Points(1000)
	require.Equal(t, few, waybilltest.Chosen(few))
	chosen := waybilltest.Chosen(many)
	require.Len(t, chosen, 200)
	require.Equal(t, []string{"before commit 1", "after commit 3"}, []string{chosen[0].String(), chosen[1].String()})
	require.Equal(t, many[995], chosen[199])
}

// What isn't safe to be killed is found: a command without a key is done twice if the
// crash comes between its commit and its answer.
func TestCrash_FindsWhatIsNotIdempotent(t *testing.T) {
	t.Parallel()
	var twice []string
	waybilltest.Crash(t, func(k *waybilltest.Kit) *billing {
		b := newBilling(k.Units(billingDomain))
		b.charge = func(ctx context.Context, c BillFee) error {
			return b.charges.Update(ctx, c.LoanID, func(charge *Charge) error {
				charge.Cents += 100
				return nil
			})
		}
		k.Start(b.context())
		return b
	}, func(ctx context.Context, b *billing) error {
		_, err := b.charges.Get(ctx, "l1")
		if missing := new(repository.NotFoundError); errors.As(err, &missing) {
			err = b.charges.Save(ctx, &Charge{Root: domain.RootWithID("l1")})
		}
		if err != nil {
			return err
		}
		return b.commands.Do(ctx, BillFee{"l1"})
	}, func(t *testing.T, b *billing) {
		t.Helper()
		charge, err := b.charges.Get(t.Context(), "l1")
		require.NoError(t, err)
		if charge.Cents != 100 {
			twice = append(twice, t.Name())
		}
	})
	require.Equal(t, []string{"TestCrash_FindsWhatIsNotIdempotent/after_commit_2"}, twice)
}
