package domain_test

import (
	"strings"
	"testing"
	"unicode/utf8"

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

// N11: nothing that a request or a message brings along makes a save fail.
func TestWithOrigin_N11_AnyTextCanBeStored(t *testing.T) {
	stored := func(text string) string {
		o := domain.OriginFrom(domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: text, CausationID: text, TenantID: text, Traceparent: text}))
		require.Equal(t, []string{o.CorrelationID, o.CorrelationID, o.CorrelationID}, []string{o.CausationID, o.TenantID, o.Traceparent})
		require.True(t, utf8.ValidString(o.TenantID))
		require.LessOrEqual(t, len(o.TenantID), 256)
		return o.TenantID
	}
	for text, want := range map[string]string{
		"":                        "",
		"c-1":                     "c-1",
		"zażółć 漢字":               "zażółć 漢字",
		"a\x00b\r\nc\x7f":         "a\uFFFDb\uFFFD\uFFFDc\uFFFD",
		"a\xffb":                  "a\uFFFDb",
		strings.Repeat("x", 256):  strings.Repeat("x", 256),
		strings.Repeat("x", 4000): strings.Repeat("x", 239) + "~91c9568c40c8d8d1",
	} {
		require.Equal(t, want, stored(text))
	}
	// What differs beyond the bound, or in what is replaced, is not taken for the same tenant.
	require.NotEqual(t, stored(strings.Repeat("漢", 100)+"a"), stored(strings.Repeat("漢", 100)+"b"))
	require.NotEqual(t, "acme", stored("ac\x00me"))
}
