package secured

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/kafkacheck"
	"github.com/waybill-go/waybill/internal/kafkatest"
)

// B3, B7, B8, B11: a user logs in over TLS and has no right yet. What is wrong is said
// at the start where it can't pass, and by health and doctor where it can; with the rights
// that doctor prints, and no others, all goes on by itself, and no row has paid for it.
func TestSecured_B3_B7_B8_B11_FromNoRightToAllThatAreNeeded(t *testing.T) {
	w := newWorld(t)
	w.refusesToStart()
	w.start(w.right())
	w.move()
	w.move()
	w.says("breaker_open", `create topics ["vault.account"]`, "TOPIC_AUTHORIZATION_FAILED", "rows wait and use up no attempts", "its permissions")
	w.nobodyPaid()
	found := w.finds("topics", "warning")
	require.Contains(t, found.What, "no topic of vault is there, or none may be seen")

	var group kafkacheck.Grant
	for _, g := range w.doctor().Brokers["default"].Grants {
		if g.Resource == "group" {
			group = g
		} else {
			w.cluster.Allow(rule(g))
		}
	}
	w.says("subscription_refused", "audit", "GROUP_AUTHORIZATION_FAILED", "give its user permission to read the topic and join the group")
	require.Equal(t, "audit", group.Name)
	w.cluster.Allow(rule(group))
	w.arrives(2)
	w.well()
	require.Contains(t, w.finds("topic", "warning").What, "it has one replica")
}

// refusesToStart is a wrong password, and a certificate of an authority that isn't trusted.
func (w *world) refusesToStart() {
	w.t.Helper()
	w.ca.Write(w.t, "wrong", []byte("wrongly"))
	stranger := kafkatest.NewAuthority(w.t)
	_, err := config.Load(w.t.Context(), w.file(w.ca.File("ca.crt"), w.ca.File("wrong")), vault, kinds)
	require.ErrorContains(w.t, err, "brokers.default: kafka: "+w.cluster.Secured()[0]+" refuses the login, or isn't trusted: SASL_AUTHENTICATION_FAILED")
	require.ErrorContains(w.t, err, "correct user, password or mechanism under sasl, leave sasl out where the port has no logins, or correct the files under tls")
	require.Equal(w.t, broker.Permanent, broker.ClassOf(err))
	require.NotContains(w.t, err.Error(), "wrongly")
	found := w.finds("connection", "critical")
	require.Contains(w.t, found.What, "it refuses the login: SASL_AUTHENTICATION_FAILED")
	require.Contains(w.t, found.Remedy, "correct user, password or mechanism under sasl")

	_, err = config.Load(w.t.Context(), w.file(stranger.File("ca.crt"), w.ca.File("password")), vault, kinds)
	require.ErrorContains(w.t, err, "isn't trusted: ")
	require.ErrorContains(w.t, err, "certificate signed by unknown authority")
	found = w.finds("connection", "critical")
	require.Contains(w.t, found.What, "it isn't trusted: ")
	require.Contains(w.t, found.Remedy, "the files under tls")
}

// B3, B7, S6, O1: each right is taken from a service that runs, its password becomes another,
// and so does the authority: health says what is wrong, rows wait and pay nothing, and
// all goes on when the right is given or the file corrected, without a restart. It takes
// a minute, which is why it needs WAYBILL_LONG.
func TestSecured_B3_B7_S6_O1_WhatIsTakenIsMissedAndItGoesOn(t *testing.T) {
	if os.Getenv("WAYBILL_LONG") == "" {
		return
	}
	w := newWorld(t)
	w.start(w.right())
	n := 0
	move := func() {
		t.Helper()
		w.move()
		n++
	}
	move()
	grants := w.doctor().Brokers["default"].Grants
	for _, g := range grants {
		w.cluster.Allow(rule(g))
	}
	w.arrives(n)
	w.well()
	streams, reads, group := grants[0], grants[1], grants[2]

	write := rule(streams, kadm.OpWrite)
	w.cluster.Forbid(write)
	move()
	w.says("topics_down", topic, "accept nothing, although their broker answers", "denies writing")
	require.Contains(t, w.log.String(), "TOPIC_AUTHORIZATION_FAILED", "Kafka's words")
	w.nobodyPaid()
	w.cluster.Allow(write)
	w.arrives(n)
	w.well()

	for _, missing := range []struct {
		rule  *kadm.ACLBuilder
		words string
	}{
		{rule(reads, kadm.OpRead), "kafka: topic " + topic + ": what was acknowledged can't be committed: TOPIC_AUTHORIZATION_FAILED"},
		{rule(group, kadm.OpRead), "GROUP_AUTHORIZATION_FAILED"},
	} {
		w.cluster.Forbid(missing.rule)
		w.says("subscription_refused", missing.words, "continues once allowed")
		move()
		w.cluster.Allow(missing.rule)
		w.arrives(n)
		w.well()
	}

	w.cluster.User("service", "renewed")
	w.says("subscription_refused", "SASL_AUTHENTICATION_FAILED")
	move()
	w.says("breaker_open", "broker default accepts nothing (kafka: topic vault.account, partition 0: no connection to 127.0.0.1:", "SASL_AUTHENTICATION_FAILED", "rows wait and use up no attempts")
	w.nobodyPaid()
	w.ca.Write(t, "password", []byte("renewed\n"))
	w.arrives(n)
	w.well()

	trusted, err := os.ReadFile(w.ca.File("ca.crt"))
	require.NoError(t, err)
	stranger, err := os.ReadFile(kafkatest.NewAuthority(t).File("ca.crt"))
	require.NoError(t, err)
	w.ca.Write(t, "ca.crt", stranger)
	w.cluster.Kill(1)
	w.cluster.Up(1)
	move()
	w.says("breaker_open", "certificate signed by unknown authority", "rows wait and use up no attempts")
	w.nobodyPaid()
	w.ca.Write(t, "ca.crt", trusted)
	w.arrives(n)
	w.well()
}
