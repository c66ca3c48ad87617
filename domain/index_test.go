package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

type (
	Guest struct {
		domain.Root
		Email string
	}
	Room struct{ domain.Root }
)

// Conformance: N11.
func TestIndex_IsDeclared(t *testing.T) {
	email := func(g *Guest) string { return g.Email }
	d := domain.MustNew("hotel", domain.Aggregate[*Guest]("guest", domain.Index("mail", email), domain.Unique("email", email)))
	guest, err := domain.AggregateTypeFor[*Guest](d)
	require.NoError(t, err)
	require.Len(t, guest.Indexes, 2)
	require.Equal(t, []any{"mail", false, "email", true}, []any{guest.Indexes[0].Name, guest.Indexes[0].Unique, guest.Indexes[1].Name, guest.Indexes[1].Unique})
	require.Equal(t, "a@b.c", guest.Indexes[1].Of(&Guest{Email: "a@b.c"}))

	_, err = domain.New("hotel", domain.Aggregate[*Guest]("guest",
		domain.Index("mail", email), domain.Unique("mail", email), domain.Index("E-Mail", email), domain.Unique[*Guest]("none", nil),
		domain.Index("of-rooms", func(*Room) string { return "" }),
	))
	for _, want := range []string{
		`aggregate "guest" has two indexes "mail": give one of them another name`,
		`domain.Index("E-Mail"): an index's name has 1 to 64 lower-case letters`,
		`domain.Unique("none", nil) has no function: give it one`,
		`domain.Index("of-rooms") takes *domain_test.Room: let it take *domain_test.Guest`,
	} {
		require.ErrorContains(t, err, want)
	}
}
