package engine

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/uow"
)

// What became of commands is shown by type, with how long their handlers take and why
// the last one failed: that to those only who may see content.
func TestCommands_ShownOverHTTP(t *testing.T) {
	b := setup(t)
	weighed := units(t, uow.Config{Domain: scales, Providers: []uow.Provider{b.db}})
	require.NoError(t, Migrate(t.Context(), weighed))
	h, err := command.New(command.Config{Units: weighed, Handlers: []command.Handler{command.On(func(_ context.Context, w Weigh) error {
		switch w.ParcelID {
		case "heavy":
			return errors.New("the scales end at 30 kg")
		case "none":
			return command.Refuse(errors.New("there is no such parcel"))
		}
		return nil
	})}})
	require.NoError(t, err)
	cfg := b.staffed()
	cfg.Contexts = []Context{{Commands: h}}
	e := b.start(cfg)
	read := func(token string) (report commandsReport) {
		w := askWith(e.Handler(), "GET", "/api/commands", "", as(token))
		require.Equal(t, 200, w.Code, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &report))
		return report
	}
	one := func(report commandsReport) commandReport {
		require.Len(t, report.Commands, 1)
		return report.Commands[0]
	}
	queue := "scales.commands"
	require.Equal(t, commandReport{Context: "scales", Command: "Weigh", Type: "Scales.Weigh.v1", Subscription: &queue}, one(read(operating)))

	began := time.Now().Add(-time.Second)
	require.NoError(t, h.Do(t.Context(), Weigh{"p1"}))
	require.Error(t, h.Do(t.Context(), Weigh{"heavy"}))
	require.Error(t, h.Do(t.Context(), Weigh{"none"}))
	require.Error(t, h.Do(t.Context(), Weigh{"p1"}, command.Before(began)))
	got := one(read(operating))
	require.Equal(t, []int64{1, 1, 1, 1, 0}, []int64{got.Done, got.Refused, got.Failed, got.Expired, got.Stopped})
	require.Equal(t, "the scales end at 30 kg", *got.LastError)
	require.WithinRange(t, *got.LastFailedAt, began, time.Now())
	for _, took := range []*latencyReport{got.Lately, got.Ever} {
		require.Positive(t, took.P50)
		require.GreaterOrEqual(t, took.P99, took.P50)
	}
	require.Equal(t, notShownText, *one(read(reading)).LastError)
	require.Equal(t, 400, askWith(e.Handler(), "GET", "/api/commands?type=Weigh", "", as(operating)).Code)

	o, err := NewObservatory(ObservatoryConfig{Providers: []uow.Provider{b.db}, Server: Server{Addr: "127.0.0.1:0"}})
	require.NoError(t, err)
	require.NoError(t, o.Start(t.Context()))
	defer func() { require.NoError(t, o.Stop(context.WithoutCancel(t.Context()))) }()
	var none commandsReport
	require.Equal(t, 200, get(t, o, "/api/commands", &none))
	require.Equal(t, []commandReport{}, none.Commands)
}
