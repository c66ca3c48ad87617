package engine

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// Databases show what they have without the application, and an operator can act;
// the engine that runs elsewhere does the rest.
func TestObservatory_ShowsDatabasesAlone(t *testing.T) {
	b, _ := withAbandoned(t)
	e, err := NewObservatory(ObservatoryConfig{Providers: []uow.Provider{b.db}, Server: Server{Addr: "127.0.0.1:0", Token: token}})
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })

	var report outboxReport
	require.Equal(t, http.StatusOK, call(t, e, "GET", "/api/outbox", "", &report))
	lane := report.Providers["default"]["partner"]
	require.EqualValues(t, 1, lane.Counts[outbox.Abandoned], lane.Error)
	require.Nil(t, lane.Breaker, "of a process, and none is asked")
	require.Nil(t, lane.PublishedPerSecond)
	require.NotEmpty(t, lane.LeaseOwners, "the running engine's")
	var health diagnosis
	require.Equal(t, http.StatusOK, call(t, e, "GET", "/api/health", "", &health))
	require.Equal(t, degraded, health.State, health.Summary)
	require.Contains(t, health.Summary, "default to partner")
	var partitions partitionsReport
	require.Equal(t, http.StatusOK, call(t, e, "GET", "/api/partitions", "", &partitions))
	require.NotEmpty(t, partitions.Providers["default"]["partner"])

	given := entries(t, e, "status=abandoned")[0]
	var result outbox.ChangeResult
	require.Equal(t, http.StatusOK, call(t, e, "POST", "/api/outbox/messages/retry", `{"filter": {"message_id": "`+given.MessageID+`", "target": "partner"}, "actor": "ann"}`, &result))
	require.EqualValues(t, 1, result.Changed)
	eventually(t, func() bool { return len(entries(t, e, "status=published")) == 4 })
}

// The dead letters of a database are its own, whoever handles its messages.
func TestObservatory_ShowsDeadLetters(t *testing.T) {
	b, running, _ := withLetters(t, nil)
	for amount := range 3 {
		require.NoError(t, b.repo.Save(t.Context(), newSale(amount)))
	}
	parkedLetters(t, running, 3)
	e, err := NewObservatory(ObservatoryConfig{Providers: []uow.Provider{b.db}, Server: Server{Addr: "127.0.0.1:0", Token: token}})
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, e.Stop(context.Background())) })
	require.Len(t, parkedLetters(t, e, 3).Letters, 3)
	var health diagnosis
	require.Equal(t, http.StatusOK, call(t, e, "GET", "/api/health", "", &health))
	require.Contains(t, health.Summary, "dead letter")
}

func TestObservatory_Refused(t *testing.T) {
	_, err := NewObservatory(ObservatoryConfig{})
	require.ErrorContains(t, err, "Providers is empty")
	db := openSQLite(t, "default")
	_, err = NewObservatory(ObservatoryConfig{Providers: []uow.Provider{db, db}, Server: Server{Addr: "0.0.0.0:0"}})
	require.ErrorContains(t, err, `two providers have the name "default"`)
	require.ErrorContains(t, err, "server.token")

	e, err := NewObservatory(ObservatoryConfig{Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.ErrorContains(t, e.Start(t.Context()), "waybill migrate", "tables are missing")
}
