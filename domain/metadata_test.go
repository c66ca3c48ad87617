package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

func TestMetadata_HandlerHandsItsCauseOn(t *testing.T) {
	m := domain.Metadata{
		ID: "m1", Priority: -50,
		Origin: domain.Origin{
			CorrelationID: "c1", CausationID: "m0", TenantID: "acme", Traceparent: "00-1-2-01",
			Extensions: map[string]string{"region": "eu"},
		},
	}
	ctx := domain.WithMetadata(t.Context(), m)
	got, ok := domain.MetadataFrom(ctx)
	require.True(t, ok)
	require.Equal(t, m, got)
	want := m.Origin
	want.CausationID = "m1"
	require.Equal(t, want, domain.OriginFrom(ctx))
	require.Equal(t, -50, domain.PriorityFrom(ctx))

	// A message without a correlation begins one.
	m.CorrelationID = ""
	require.Equal(t, "m1", domain.OriginFrom(domain.WithMetadata(t.Context(), m)).CorrelationID)
}

func TestMetadata_OfAnEmptyContextIsEmpty(t *testing.T) {
	_, ok := domain.MetadataFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, domain.OriginFrom(t.Context()))
	require.Zero(t, domain.PriorityFrom(t.Context()))
	require.Equal(t, 7, domain.PriorityFrom(domain.WithPriority(t.Context(), 7)))
}

func TestWithOrigin_KeepsItsOwnExtensions(t *testing.T) {
	extensions := map[string]string{"a": "1"}
	ctx := domain.WithOrigin(t.Context(), domain.Origin{Extensions: extensions})
	extensions["a"] = "2"
	require.Equal(t, "1", domain.OriginFrom(ctx).Extensions["a"])
}
