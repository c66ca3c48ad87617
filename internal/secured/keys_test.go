package secured

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/kafkatest"
)

// B8, S6: each key of tls and sasl comes from the file, or from the environment in its
// place, to the connection: with it there is one, and without it, or with another, there is
// none. The fake says nothing of a wrong login, and hangs up; what Kafka says of it,
// TestSecured holds.
func TestKeys_B8_S6_EachOfTLSAndSASLHasItsEffect(t *testing.T) {
	a, stranger := kafkatest.NewAuthority(t), kafkatest.NewAuthority(t)
	a.Certify(t, "client", &a.Pair)
	a.Write(t, "password", []byte("secret\n"))
	root, err := x509.ParseCertificate(a.Pair.Certificate[0])
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(root)
	server := tls.Config{Certificates: []tls.Certificate{a.Certify(t, "server", &a.Pair)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&server), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-512", "service", "secret"), kfake.Superuser("SCRAM-SHA-256", "other", "hidden"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)

	right := map[string]string{
		"tls.ca": a.File("ca.crt"), "tls.cert": a.File("client.crt"), "tls.key": a.File("client.key"), "tls.server_name": "kafka.test",
		"sasl.mechanism": "scram-sha-512", "sasl.user": "service", "sasl.password_file": a.File("password"),
	}
	open := func(keys map[string]string, within time.Duration) error {
		dir := t.TempDir()
		f := filepath.Join(dir, "waybill.yaml")
		require.NoError(t, os.WriteFile(f, []byte(file(dir, cluster.ListenAddrs()[0], keys)), 0o600))
		s, err := config.Load(t.Context(), f, vault, kinds)
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, s.Close(context.Background())) }()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return s.Engine.Brokers["default"].EnsureTopics(ctx, topic)
	}
	require.NoError(t, open(right, time.Minute))
	for _, c := range []struct {
		key, value string // "": without it.
		words      string
	}{
		{"tls.ca", "", "unknown authority"},
		{"tls.ca", stranger.File("ca.crt"), "unknown authority"},
		{"tls.cert", "", "tls.cert and tls.key belong together"},
		{"tls.key", "", "tls.cert and tls.key belong together"},
		{"tls.key", stranger.File("ca.key"), "tls.cert: tls: private key does not match public key"},
		{"tls.server_name", "other.test", "not other.test"},
		{"sasl.mechanism", "", `sasl.mechanism is ""`},
		{"sasl.mechanism", "plain", "kafka: topics: "},
		{"sasl.user", "", "sasl.user is missing"},
		{"sasl.user", "other", "kafka: topics: "},
		{"sasl.password_file", "", "sasl.password is missing"},
		{"sasl.password_file", a.File("none"), "sasl.password_file: open "},
		{"sasl.password_file", a.File("ca.crt"), "kafka: topics: "},
	} {
		t.Run(c.key+"="+filepath.Base(c.value), func(t *testing.T) {
			other := map[string]string{}
			for key, value := range right {
				if key != c.key {
					other[key] = value
				} else if c.value != "" {
					other[key] = c.value
				}
			}
			err := open(other, 5*time.Second)
			require.ErrorContains(t, err, c.words)
			require.NotContains(t, err.Error(), "secret")
			// The environment has the last word.
			t.Setenv("WAYBILL_BROKERS_DEFAULT_"+strings.ToUpper(strings.ReplaceAll(c.key, ".", "_")), right[c.key])
			require.NoError(t, open(other, time.Minute))
		})
	}
	t.Run("sasl.password", func(t *testing.T) {
		other := maps.Clone(right)
		delete(other, "sasl.password_file")
		other["sasl.password"] = "wrongly"
		err := open(other, 5*time.Second)
		require.ErrorContains(t, err, "kafka: topics: ")
		require.NotContains(t, err.Error(), "wrongly")
		t.Setenv("WAYBILL_BROKERS_DEFAULT_SASL_PASSWORD", "secret")
		require.NoError(t, open(other, time.Minute))
	})
	t.Run("tls.enabled", func(t *testing.T) {
		require.ErrorContains(t, open(map[string]string{"tls.enabled": "true"}, 5*time.Second), "unknown authority", "the system's")
	})
}

// file is a configuration with some keys of a broker, each of tls or sasl.
func file(dir, address string, keys map[string]string) string {
	sections := map[string][]string{}
	for key, value := range keys {
		section, name, _ := strings.Cut(key, ".")
		sections[section] = append(sections[section], fmt.Sprintf("%s: %s", name, value))
	}
	text := fmt.Sprintf("domain: vault\nproviders: {default: {dialect: sqlite, path: %q}}\nbrokers:\n  default:\n    kind: kafka\n    addresses: [%q]\n",
		filepath.Join(dir, "vault.db"), address)
	for section, lines := range sections {
		text += "    " + section + ": {" + strings.Join(lines, ", ") + "}\n"
	}
	return text
}
