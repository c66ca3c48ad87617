package uow_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// tracing is a change of a configuration that keeps the spans.
func tracing() (*sdktrace.TracerProvider, *tracetest.InMemoryExporter, func(*uow.Config)) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	return provider, spans, func(cfg *uow.Config) { cfg.TracerProvider = provider }
}

func traceparents(t *testing.T, p uow.Provider) (all []string) {
	t.Helper()
	require.NoError(t, p.Reader().NewRaw("SELECT COALESCE(traceparent, '') FROM outbox ORDER BY seq").Scan(t.Context(), &all))
	return all
}

func header(span tracetest.SpanStub) string {
	return "00-" + span.SpanContext.TraceID().String() + "-" + span.SpanContext.SpanID().String() + "-01"
}

// A unit of work is a span below what called it, and its rows are written in it, or
// in a span of the application's below it.
func TestSpans_AUnitIsOne(t *testing.T) {
	const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	databases(t, func(t *testing.T, open providers) {
		provider, spans, change := tracing()
		w := newWorld(t, open, change)
		save := func(ctx context.Context, id string) {
			t.Helper()
			a := newAccount(id)
			a.Deposit(1)
			a.Annotate("x")
			require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error {
				return w.units.Do(ctx, func(ctx context.Context) error { return w.save(ctx, a) }) // joins
			}))
		}
		outer, parent := provider.Tracer("").Start(t.Context(), "request")
		save(outer, "a")
		save(domain.WithOrigin(t.Context(), domain.Origin{Traceparent: sampled}), "b")
		save(domain.WithOrigin(t.Context(), domain.Origin{Traceparent: "nonsense"}), "c") // S2-52
		save(t.Context(), "d")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			ctx, span := provider.Tracer("").Start(ctx, "step")
			defer span.End()
			a := newAccount("e")
			a.Annotate("x")
			return w.save(ctx, a)
		}))

		units := map[int]tracetest.SpanStub{}
		var step tracetest.SpanStub
		for _, s := range spans.GetSpans() {
			if s.Name == "step" {
				step = s
			} else {
				require.Equal(t, "waybill.uow", s.Name)
				units[len(units)] = s
			}
		}
		require.Len(t, units, 5)
		require.Equal(t, parent.SpanContext().SpanID(), units[0].Parent.SpanID())
		require.Equal(t, sampled, "00-"+units[1].Parent.TraceID().String()+"-"+units[1].Parent.SpanID().String()+"-01")
		require.False(t, units[2].Parent.IsValid())
		require.False(t, units[3].Parent.IsValid())
		require.Equal(t, []attribute.KeyValue{
			attribute.String("waybill.context", "bank"), attribute.StringSlice("waybill.providers", []string{"default"}),
			attribute.Int("waybill.events", 2), attribute.Int("waybill.rows", 3), attribute.Int("waybill.tries", 1),
		}, units[0].Attributes)

		var want []string
		for i := range 4 {
			want = append(want, header(units[i]), header(units[i]), header(units[i]))
		}
		require.Equal(t, append(want, header(step)), traceparents(t, w.db))
		require.Equal(t, units[4].SpanContext.SpanID(), step.Parent.SpanID())
	})
}

// What went wrong is told, and how often it was tried.
func TestSpans_AUnitThatFails(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		_, spans, change := tracing()
		w := newWorld(t, open, change)
		w.saved(t, newAccount("a"))
		spans.Reset()
		a := newAccount("a")
		require.Error(t, w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) }))
		require.PanicsWithError(t, "no", func() {
			_ = w.units.Do(t.Context(), func(context.Context) error { panic(errors.New("no")) })
		})
		tries := 0
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			a, err := get(ctx, w.store, newAccount("a"))
			if err != nil {
				return err
			}
			if tries++; tries == 1 {
				return &uow.ConflictError{Type: "account", ID: "a"}
			}
			a.Deposit(1)
			return w.save(ctx, a)
		}))
		all := spans.GetSpans()
		require.Len(t, all, 3)
		require.Equal(t, codes.Error, all[0].Status.Code)
		require.Equal(t, "exception", all[0].Events[0].Name)
		require.Contains(t, all[0].Status.Description, "account")
		require.Equal(t, "exception", all[1].Events[0].Name)
		require.Equal(t, codes.Unset, all[2].Status.Code)
		require.Contains(t, all[2].Attributes, attribute.Int("waybill.tries", 2))
	})
}

// Without a provider a row has what came with the request.
func TestSpans_NoneWithoutAProvider(t *testing.T) {
	w := newWorld(t, openSQLite)
	a := newAccount("a")
	a.Annotate("x")
	ctx := domain.WithOrigin(t.Context(), domain.Origin{Traceparent: "as it came"})
	require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error { return w.save(ctx, a) }))
	require.Equal(t, []string{"as it came"}, traceparents(t, w.db))
}
