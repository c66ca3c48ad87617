package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

type Captured struct{ Payment string }

// A partner's type is taken as it stands: it has no version, whatever it ends with.
// Conformance: N.
func TestPartnerEvent_IsReadByItsType(t *testing.T) {
	d := domain.MustNew("shop",
		domain.PartnerEvent[Captured]("com.psp.captured.v2", domain.Alias("com.psp.captured"), domain.Alias("com.psp.captured.v1")),
		domain.PartnerEvent[StockReserved]("stock_reserved", domain.From("partner-stock")),
	)
	for _, name := range []string{"com.psp.captured", "com.psp.captured.v1", "com.psp.captured.v2"} {
		e, err := d.Decode(name, []byte(`{"Payment":"p"}`))
		require.NoError(t, err)
		require.Equal(t, Captured{"p"}, e)
	}
	for _, name := range []string{"com.psp.captured.v3", "com.psp.captured.v2.v1", "stock_reserved.v1", "COM.psp.captured"} {
		require.False(t, d.Knows(name), name)
	}
	captured, err := domain.EventTypeFor[Captured](d)
	require.NoError(t, err)
	require.True(t, captured.Foreign && captured.Partner)
	require.Equal(t, "com.psp.captured.v2", captured.WireName())
	require.True(t, captured.ComesBy("psp::payment"))
	stock, err := domain.EventTypeFor[StockReserved](d)
	require.NoError(t, err)
	require.False(t, stock.ComesBy("psp::payment"))
	_, _, err = d.Encode(Captured{})
	require.ErrorContains(t, err, "another context's event")

	_, err = domain.New("shop",
		domain.PartnerEvent[Captured]("com.psp captured"),
		domain.PartnerEvent[StockReserved]("com.psp.stock", domain.Version(2), domain.Published(), domain.Named("x")),
		domain.PartnerEvent[NoteAdded]("com.psp.stock"),
		domain.PartnerEvent[*OrderPlaced]("com.psp.placed"),
	)
	for _, want := range []string{
		`partner event domain_test.Captured: "com.psp captured" can't be a message's type`, "partner event com.psp.stock can't have a Version: another one has another type",
		"com.psp.stock can't be Published", "can't be Named", "event name com.psp.stock is used by", "is a pointer",
	} {
		require.ErrorContains(t, err, want)
	}
}
