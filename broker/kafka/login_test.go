package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/internal/kafkatest"
)

// serves says that b publishes and consumes.
func serves(t testing.TB, b broker.Broker) {
	t.Helper()
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 0, 3)))
	c, err := b.Consume(bounded(t), "topic", "group")
	require.NoError(t, err)
	require.Len(t, receive(t, c, 3), 3)
	require.NoError(t, c.Close(bounded(t)))
}

// B8, S6: TLS and each mechanism of SASL, from the keys of a file.
func TestFromSettings_B8_S6_TLSAndSASL(t *testing.T) {
	t.Parallel()
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			a := kafkatest.NewAuthority(t)
			a.Write(t, "password", []byte("secret\n"))
			names := map[string]string{"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"}
			c := fake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{a.Certify(t, "server", &a.Pair)}}),
				kfake.EnableSASL(), kfake.Superuser(names[mechanism], "waybill", "secret"))
			for _, password := range []string{"password: secret", "password_file: " + a.File("password")} {
				b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf("{addresses: [%q], tls: {ca: %s}, sasl: {mechanism: %s, user: waybill, %s}}",
					c.ListenAddrs()[0], a.File("ca.crt"), mechanism, password)))
				require.NoError(t, err)
				serves(t, b)
				require.NoError(t, b.Close(bounded(t)))
			}
		})
	}
}

// B8, S6: a server that isn't trusted, or is another one, is an error at once.
// server_name says whom we expect.
func TestFromSettings_B8_S6_AServerThatIsNotTrusted(t *testing.T) {
	t.Parallel()
	a, stranger := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	c := fake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{a.Certify(t, "server", &a.Pair)}}),
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "waybill", "secret"))
	login := "sasl: {mechanism: scram-sha-512, user: waybill, password: secret}"
	for what, keys := range map[string]string{
		"only the system's authorities": "tls: {enabled: true}, " + login,
		"another authority":             "tls: {ca: " + stranger.File("ca.crt") + "}, " + login,
		"another name":                  "tls: {ca: " + a.File("ca.crt") + ", server_name: other.test}, " + login,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf("{addresses: [%q], %s}", c.ListenAddrs()[0], keys)))
			require.ErrorContains(t, err, "refuses the login, or isn't trusted")
			require.ErrorContains(t, err, c.ListenAddrs()[0])
			require.Equal(t, broker.Permanent, broker.ClassOf(err))
		})
	}
	b, err := kafka.FromSettings(bounded(t), settings(fmt.Sprintf("{addresses: [%q], tls: {ca: %s, server_name: kafka.test}, %s}", c.ListenAddrs()[0], a.File("ca.crt"), login)))
	require.NoError(t, err)
	serves(t, b)
	require.NoError(t, b.Close(bounded(t)))
}

// B8, S6, B11: a login that Kafka refuses is an error at once, without the password.
func TestOpen_B11_B8_ALoginThatIsRefused(t *testing.T) {
	t.Parallel()
	for what, refusal := range map[string]kfake.Fault{
		"a mechanism that it doesn't have": {Keys: []kmsg.Key{kmsg.SASLHandshake}, TopLevel: true, Err: kerr.UnsupportedSaslMechanism, Count: -1},
		"a port without logins":            {Keys: []kmsg.Key{kmsg.SASLHandshake}, TopLevel: true, Err: kerr.IllegalSaslState, Count: -1},
		"a wrong password":                 {Keys: []kmsg.Key{kmsg.SASLAuthenticate}, TopLevel: true, Err: kerr.SaslAuthenticationFailed, Count: -1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := fake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "orders", "secret"))
			c.Fault(refusal)
			_, err := kafka.Open(bounded(t), kafka.Config{
				Addresses: c.ListenAddrs(), SASL: kafka.SASL{Mechanism: "plain", User: "orders", Password: "wrongly"},
			})
			require.ErrorIs(t, err, refusal.Err)
			require.ErrorContains(t, err, "refuses the login")
			require.ErrorContains(t, err, c.ListenAddrs()[0])
			require.Equal(t, broker.Permanent, broker.ClassOf(err))
			require.NotContains(t, err.Error(), "wrongly")
		})
	}
}

// S6: the certificate to log in with is read again for each connection: one that
// was renewed in its file needs no restart.
func TestTLS_S6_ARenewedCertificateIsRead(t *testing.T) {
	t.Parallel()
	a, stranger := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	pool := x509.NewCertPool()
	root, err := x509.ParseCertificate(a.Pair.Certificate[0])
	require.NoError(t, err)
	pool.AddCert(root)
	c := fake(t, kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{a.Certify(t, "server", &a.Pair)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}))
	conf := kafka.TLS{CA: a.File("ca.crt"), Cert: a.File("client.crt"), Key: a.File("client.key")}
	a.Certify(t, "client", &stranger.Pair)
	_, err = kafka.Open(bounded(t), kafka.Config{Addresses: c.ListenAddrs(), TLS: conf})
	require.ErrorContains(t, err, "refuses the login")

	a.Certify(t, "client", &a.Pair)
	network := newNetwork()
	b := openFake(t, c, func(c *kafka.Config) { c.TLS, c.Dial = conf, network.Dial })
	serves(t, b)
	a.Certify(t, "client", &stranger.Pair)
	network.cut()
	network.up()
	failed := failures(t, b.Publish(bounded(t), run("topic", "key", 3, 1)))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(failed[0]), "%v", failed[0])
	a.Certify(t, "client", &a.Pair)
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 3, 1)))
}

// S6, B7: a password that changes in its file is read at the next login; until it
// is right, nothing is lost or paid for.
func TestSASL_S6_B7_AChangedPasswordIsRead(t *testing.T) {
	t.Parallel()
	a := kafkatest.NewAuthority(t)
	a.Write(t, "password", []byte("old"))
	c := fake(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "waybill", "old"), kfake.Superuser("PLAIN", "admin", "admin"))
	network := newNetwork()
	b := openFake(t, c, func(c *kafka.Config) {
		c.SASL, c.Dial = kafka.SASL{Mechanism: "scram-sha-256", User: "waybill", PasswordFile: a.File("password")}, network.Dial
	})
	serves(t, b)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.SASL(plain.Plain(func(context.Context) (plain.Auth, error) {
		return plain.Auth{User: "admin", Pass: "admin"}, nil
	})))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).AlterUserSCRAMs(bounded(t), nil, []kadm.UpsertSCRAM{{User: "waybill", Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "new"}})
	require.NoError(t, err)
	network.cut()
	network.up()
	failed := failures(t, b.Publish(bounded(t), run("topic", "key", 3, 1)))
	require.Equal(t, broker.Unavailable, broker.ClassOf(failed[0]), "%v", failed[0])
	require.Equal(t, broker.ScopeBroker, broker.ScopeOf(failed[0]), "%v", failed[0])
	a.Write(t, "password", []byte("new\n"))
	require.NoError(t, b.Publish(bounded(t), run("topic", "key", 3, 1)))
}

// What doesn't go together is refused before anything connects, with what to write.
func TestFromSettings_WrongCombinations(t *testing.T) {
	t.Parallel()
	a := kafkatest.NewAuthority(t)
	a.Write(t, "empty", nil)
	for keys, want := range map[string]string{
		"tls: {cert: x}":                                                       "tls.cert and tls.key belong together",
		"tls: {key: x}":                                                        "tls.cert and tls.key belong together",
		"tls: {ca: /no/such}":                                                  "give a file of PEM certificates",
		"tls: {ca: " + a.File("empty") + "}":                                   "has no certificate",
		"tls: {cert: /no/such, key: /no/such}":                                 "give PEM files",
		"sasl: {mechanism: plain, password: x}":                                "sasl.user is missing",
		"sasl: {mechanism: plain, user: u}":                                    "sasl.password is missing",
		"sasl: {mechanism: kerberos, user: u, password: hush}":                 `sasl.mechanism is "kerberos": use plain, scram-sha-256 or scram-sha-512`,
		"sasl: {mechanism: plain, user: u, password: hush, password_file: /f}": "sasl.password and sasl.password_file are both given",
		"sasl: {mechanism: plain, user: u, password_file: /no/such}":           "sasl.password_file",
		"min_insync_replicas: 3, replication_factor: 2":                        "no message could ever be stored",
		"max_batch_bytes: 2000":                                                "max_batch_bytes is 2000",
		"session_timeout: 1s":                                                  "session_timeout is 1s",
		"rebalance_timeout: 1ms":                                               "rebalance_timeout is 1ms",
	} {
		_, err := kafka.FromSettings(bounded(t), settings("{addresses: ['127.0.0.1:1'], "+keys+"}"))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hush")
	}
}

// S11: a password isn't printed with its configuration.
func TestSASL_S11_ThePasswordIsNotPrinted(t *testing.T) {
	conf := kafka.Config{SASL: kafka.SASL{Mechanism: "plain", User: "waybill", Password: "hush"}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(format, conf), "hush")
	}
}
