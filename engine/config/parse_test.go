package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
)

// write puts text into a file called waybill.yaml.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "waybill.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const smallest = `domain: ordering
providers: {default: {dialect: sqlite, path: ./ordering.db}}
brokers: {default: {kind: memory}, partner: {kind: memory, topic_prefix: "partner."}}
`

func TestParse_TheSampleOfTheDocumentation(t *testing.T) {
	f, err := Parse("testdata/waybill.yaml")
	require.NoError(t, err)
	require.Equal(t, "ordering", f.Domain)
	require.Equal(t, "default", f.Broker)
	require.Equal(t, []outbox.Target{{Broker: "partner"}}, f.External)
	require.Equal(t, 64, f.Partitions)
	require.Equal(t, 1<<20, f.MaxMessageBytes)
	require.Equal(t, outbox.Config{}.WithDefaults(), f.Outbox.WithDefaults(), "the sample shows the defaults")
	require.Equal(t, "127.0.0.1:9000", f.Server.Addr)
	require.Empty(t, f.Server.Token)
	require.Len(t, f.providers, 1)
	require.Equal(t, "postgres", f.providers[0].dialect)
	require.Len(t, f.brokers, 2)
	require.Equal(t, "kafka", f.brokers[0].kind)
	require.Equal(t, "partner.", f.brokers[1].prefix)
	require.Equal(t, "default", f.brokers[1].shares, "one connection for both")
}

func TestParse_TheSmallestFileLeavesTheRestToTheDefaults(t *testing.T) {
	f, err := Parse(write(t, smallest))
	require.NoError(t, err)
	require.Equal(t, outbox.Config{}, f.Outbox, "zero, so that a program sees what the file doesn't say")
	require.Equal(t, "default", f.Broker)
	require.Empty(t, f.External)
	require.Zero(t, f.Partitions)
	require.Zero(t, f.Server)
}

// keys are all keys with one meaning each: written in the file, or as a
// variable, a value lands in its field, and a wrong one is refused.
var keys = []struct {
	path, value string
	want        any
	got         func(*File) any
	wrong       string // a value that is refused
	because     string
}{
	{"outbox.broker", "partner", "partner", func(f *File) any { return f.Broker }, "partnr", `names broker "partnr", which is not in brokers; did you mean "partner"?`},
	{"outbox.calls", "7", 7, func(f *File) any { return f.Outbox.Calls }, "-3", "outbox.calls is -3: at least 1"},
	{"outbox.partitions", "16", 16, func(f *File) any { return f.Partitions }, "-1", "at least 1"},
	{"outbox.on_abandoned", "hold", outbox.Hold, func(f *File) any { return f.Outbox.OnAbandoned }, "keep", `outbox.on_abandoned is "keep": "skip" or "hold"`},
	{"outbox.on_failover", "continue", outbox.Continue, func(f *File) any { return f.Outbox.OnFailover }, "go", `outbox.on_failover is "go": "stop" or "continue"`},
	{"outbox.max_message_bytes", "2048", 2048, func(f *File) any { return f.MaxMessageBytes }, "-2", "-1 for no limit"},
	{"outbox.batch_size", "50", 50, func(f *File) any { return f.Outbox.BatchSize }, "1e3", `is "1e3", which is not a whole number`},
	{"outbox.poll_interval", "250ms", 250 * time.Millisecond, func(f *File) any { return f.Outbox.PollInterval }, "5", `is "5", which is not a duration such as`},
	{"outbox.max_poll_interval", "9s", 9 * time.Second, func(f *File) any { return f.Outbox.MaxPollInterval }, "10ms", "not below poll_interval"},
	{"outbox.lease", "40s", 40 * time.Second, func(f *File) any { return f.Outbox.Lease }, "10ms", "outbox.lease is 10ms: at least 1s"},
	{"outbox.publish_timeout", "3s", 3 * time.Second, func(f *File) any { return f.Outbox.PublishTimeout }, "-1s", "above 0 and below 27s, which is the lease, 30s, less a margin"},
	{"outbox.retry.max_attempts", "9", 9, func(f *File) any { return f.Outbox.Retry.MaxAttempts }, "-1", "at least 1"},
	{"outbox.retry.base_delay", "1s", time.Second, func(f *File) any { return f.Outbox.Retry.BaseDelay }, "-1s", "above 0"},
	{"outbox.retry.multiplier", "1.5", 1.5, func(f *File) any { return f.Outbox.Retry.Multiplier }, ".nan", "not a number"},
	{"outbox.retry.max_backoff", "2h", 2 * time.Hour, func(f *File) any { return f.Outbox.Retry.MaxBackoff }, "1s", "not below base_delay"},
	{"outbox.retry.jitter", "-1", float64(-1), func(f *File) any { return f.Outbox.Retry.Jitter }, "2", "-1 for none"},
	{"outbox.retention.mode", "delete", true, func(f *File) any { return f.Outbox.Retention.Delete }, "drop", `is "drop": "keep" or "delete"`},
	{"outbox.retention.published", "24h", 24 * time.Hour, func(f *File) any { return f.Outbox.Retention.Published }, "10m", "at least 19m15s, which is how long a row can be retried"},
	{"outbox.retention.abandoned", "-1", time.Duration(-1), func(f *File) any { return f.Outbox.Retention.Abandoned }, "soon", "not a duration"},
	{"outbox.retention.every", "10m", 10 * time.Minute, func(f *File) any { return f.Outbox.Retention.Every }, "[1h]", "must be a single value"},
	{"subscriptions.dead_letters.resolved", "-1", time.Duration(-1), func(f *File) any { return f.DeadLetters.Resolved }, "-2s", "above 0, or -1 to keep for ever"},
	{"subscriptions.dead_letters.every", "10m", 10 * time.Minute, func(f *File) any { return f.DeadLetters.Every }, "-5m", "above 0, or -1 for never"},
	{"subscriptions.dead_letters.batch", "100", 100, func(f *File) any { return f.DeadLetters.Batch }, "-1", "from 1 to 100000"},
	{"server.addr", "127.0.0.1:0", "127.0.0.1:0", func(f *File) any { return f.Server.Addr }, "", ""},
	{"server.token", "1234567890123456", "1234567890123456", func(f *File) any { return f.Server.Token }, "12345", "server.token has 5 bytes, which can be guessed: at least 16"},
	{
		"server.tokens", "[{name: oncall, role: operate, file: /run/secrets/oncall}, {name: grafana, role: read, token: 1234567890123456}]",
		[]engine.Token{{Name: "oncall", Role: engine.RoleOperate, File: "/run/secrets/oncall"}, {Name: "grafana", Role: engine.RoleRead, Token: "1234567890123456"}},
		func(f *File) any { return f.Server.Tokens }, "[{name: grafana, role: admin, token: 1234567890123456}]", `server.tokens[0].role is "admin": read or operate`,
	},
	{"server.show_payloads", "true", true, func(f *File) any { return f.Server.ShowPayloads }, "often", `server.show_payloads is "often": true or false`},
	{"server.redact", "[card, iban]", []string{"card", "iban"}, func(f *File) any { return f.Server.Redact }, "", ""},
	{"history", "true", true, func(f *File) any { return f.History }, "all", `history is "all": true or false`},
	{"domain", "shipping", "shipping", func(f *File) any { return f.Domain }, "", ""},
}

// nested writes a value at a path below the smallest file.
func nested(path, value string) string {
	steps := strings.Split(path, ".")
	if path == "domain" {
		return strings.Replace(smallest, steps[0]+": ordering", steps[0]+": "+value, 1)
	}
	var b strings.Builder
	b.WriteString(smallest)
	for i, step := range steps {
		b.WriteString(strings.Repeat("  ", i) + step + ":")
		if i < len(steps)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func TestParse_EveryKeyHasItsEffect(t *testing.T) {
	for _, k := range keys {
		t.Run(k.path, func(t *testing.T) {
			f, err := Parse(write(t, nested(k.path, k.value)))
			require.NoError(t, err)
			require.Equal(t, k.want, k.got(f), "from the file")

			t.Setenv(variable(k.path), k.value)
			f, err = Parse(write(t, smallest))
			require.NoError(t, err)
			require.Equal(t, k.want, k.got(f), "from the environment")
		})
	}
}

func TestParse_EveryKeyRefusesWhatIsWrong(t *testing.T) {
	for _, k := range keys {
		if k.because == "" {
			continue // any text will do
		}
		t.Run(k.path, func(t *testing.T) {
			_, err := Parse(write(t, nested(k.path, k.wrong)))
			require.ErrorContains(t, err, k.because)
			require.ErrorContains(t, err, k.path)
			require.Regexp(t, `waybill\.yaml:\d+: `, err.Error(), "with the line")

			if strings.HasPrefix(k.wrong, "[") {
				return
			}
			t.Setenv(variable(k.path), k.wrong)
			_, err = Parse(write(t, smallest))
			require.ErrorContains(t, err, variable(k.path)+": ", "names the variable")
			require.ErrorContains(t, err, k.because)
		})
	}
}

// A key of the form that no test above knows would have no test.
func TestParse_NoKeyIsForgotten(t *testing.T) {
	tested := map[string]bool{"outbox.external_brokers": true, "providers": true, "brokers": true}
	for _, k := range keys {
		tested[k.path] = true
	}
	for path := range leaves(value(new(document)), "") {
		require.True(t, tested[path], "%s has no test", path)
	}
}

func TestParse_MistakesInTheFile(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"unknown key, with the nearest": {
			smallest + "outbox:\n  cals: 3\n",
			[]string{`waybill.yaml:5: outbox.cals is not a known key; did you mean "calls"?`},
		},
		"a key of an earlier version": {
			smallest + "outbox:\n  workers: 3\n",
			[]string{"waybill.yaml:5: outbox.workers was removed: leave it out; outbox.calls says"},
		},
		"unknown key, with no near one": {
			smallest + "server: {certificate: x}\n",
			[]string{"waybill.yaml:4: server.certificate is not a known key; known here: addr, redact, show_payloads, token"},
		},
		"unknown section": {
			smallest + "subscripions: {}\n",
			[]string{"subscripions is not a known key"},
		},
		"a key twice": {
			smallest + "server:\n  addr: a\n  addr: b\n",
			[]string{"server.addr is written twice, first in line 5"},
		},
		"0 means the default": {
			smallest + "outbox: {calls: 0, lease: 0s, retry: {jitter: 0.0}, retention: {published: 0}}\n",
			[]string{"outbox.calls is 0, which would mean the default", "outbox.lease is 0,", "outbox.retry.jitter is 0,", "outbox.retention.published is 0,", "or write -1"},
		},
		"a list where keys belong": {
			smallest + "outbox: [calls]\n",
			[]string{"outbox must hold keys with values"},
		},
		"a word where a list belongs": {
			smallest + "outbox: {external_brokers: partner}\n",
			[]string{"outbox.external_brokers must be a list"},
		},
		"no provider": {
			"domain: ordering\n",
			[]string{"providers is missing: name a database"},
		},
		"a provider without a dialect": {
			"providers:\n  default: {path: x}\n",
			[]string{"waybill.yaml:2: providers.default has no dialect"},
		},
		"a provider that holds nothing": {
			"providers:\n  default:\n",
			[]string{"providers.default must hold keys with values"},
		},
		"one database under two names": {
			"providers:\n  a: {dialect: sqlite, path: x}\n  b: {path: x, dialect: sqlite}\n",
			[]string{"waybill.yaml:3: providers.b is the same database as providers.a"},
		},
		"a broker without a kind": {
			"providers: {default: {dialect: sqlite}}\nbrokers: {default: {}}\n",
			[]string{"brokers.default has no kind"},
		},
		"equal brokers, equal topics": {
			"providers: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: kafka, addresses: [h:1]}\n  b: {kind: kafka, addresses: [h:1], partitions: 3}\n  c: {kind: kafka, addresses: [h:1], topic_prefix: c.}\n",
			[]string{"waybill.yaml:4: brokers.b is at the same place as brokers.a"},
		},
		"a topic_prefix that Kafka doesn't take": {
			"domain: ordering\nproviders: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: kafka, addresses: [h:1], topic_prefix: \"team a/\"}\n",
			[]string{`waybill.yaml:4: brokers.a.topic_prefix "team a/" has ' ', which Kafka takes in no topic: use a-z, A-Z, 0-9, '.', '_' and '-'`},
		},
		"a topic_prefix that leaves no room": {
			"domain: ordering\nproviders: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: kafka, addresses: [h:1], topic_prefix: " + strings.Repeat("x", 240) + "}\n",
			[]string{"brokers.a.topic_prefix has 240 characters, and a topic of Kafka may have 249 with the stream's name behind it: shorten it to 239 or less"},
		},
		"a topic_prefix that NATS doesn't take": {
			"providers: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: nats, url: \"nats://h:1\", topic_prefix: \"a b.\"}\n  b: {kind: nats, url: \"nats://h:2\", topic_prefix: a..}\n  c: {kind: nats, url: \"nats://h:3\", topic_prefix: $a.}\n",
			[]string{
				`waybill.yaml:3: brokers.a.topic_prefix "a b." can't begin a subject of NATS: use words with single dots between, without white space, slashes, * or >, and no $ in front`,
				`waybill.yaml:4: brokers.b.topic_prefix "a.."`, `waybill.yaml:5: brokers.c.topic_prefix "$a."`,
			},
		},
		"one embedded server under two names": {
			"providers: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: nats, embedded: ./data}\n  b: {kind: nats, embedded: data/, listen: \"127.0.0.1:4222\"}\n",
			[]string{"waybill.yaml:4: brokers.b is at the same place as brokers.a, so both would use the same topics: give one of them another topic_prefix"},
		},
		"one NATS under two names": {
			"providers: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: nats, url: \"nats://h:4222\", topic_prefix: p.}\n  b: {kind: nats, url: \"nats://h:4222\", topic_prefix: p.}\n",
			[]string{"waybill.yaml:4: brokers.b is at the same place as brokers.a"},
		},
		"one cluster by different members": {
			"providers: {default: {dialect: sqlite}}\nbrokers:\n  a: {kind: kafka, addresses: [h:1, h:2]}\n  b: {kind: kafka, addresses: [h:3, h:2]}\n",
			[]string{"waybill.yaml:4: brokers.b is at the same place as brokers.a"},
		},
		"an external broker that does not exist": { // A58
			smallest + "outbox: {external_brokers: [{broker: parner}]}\n",
			[]string{`outbox.external_brokers[0] names broker "parner", which is not in brokers; did you mean "partner"?`},
		},
		"an external broker that is the own one, and one that comes twice": {
			smallest + "outbox: {external_brokers: [default, partner, partner, {events: [X]}]}\n",
			[]string{"outbox.external_brokers[0] is \"default\", the domain's own broker", "outbox.external_brokers[2] is \"partner\", which stands there already", "outbox.external_brokers[3] names no broker"},
		},
		"an envelope that nobody knows": {
			smallest + "outbox:\n  external_brokers:\n    - broker: partner\n      envelope: cloudevent\n",
			[]string{`waybill.yaml:7: outbox.external_brokers[0].envelope is "cloudevent": use one of ["waybill" "cloudevents" "cloudevents-binary"], or leave it out for "waybill"`},
		},
		"all that is wrong with external brokers": {
			smallest + "outbox: {external_brokers: [{broker: parner, envelope: xml}, {envelope: y}, {broker: default, event: [], topics: [a], extensions: b}]}\n",
			[]string{
				`[0] names broker "parner"`, `[0].envelope is "xml"`, `[1] names no broker`, `[2] is "default", the domain's own broker`,
				`[2].event is not a known key`, `[2].topics must hold keys`, `[2].extensions must be a list`,
			},
		},
		"an unknown key of an external broker": {
			smallest + "outbox: {external_brokers: [{broker: partner, event: [A]}]}\n",
			[]string{`outbox.external_brokers[0].event is not a known key; did you mean "events"?`},
		},
		"a lease that leaves no time for a call": {
			smallest + "outbox:\n  lease: 20s\n  publish_timeout: 18s\n",
			[]string{"waybill.yaml:6: outbox.publish_timeout is 18s: above 0 and below 18s, which is the lease, 20s, less a margin", "lower it, or raise outbox.lease"},
		},
		"retention shorter than the retries": {
			smallest + "outbox:\n  retry: {max_attempts: 100}\n  retention:\n    published: 24h\n    abandoned: 48h\n",
			[]string{
				"waybill.yaml:7: outbox.retention.published is 24h0m0s: at least 117h34m15s", "waybill.yaml:8: outbox.retention.abandoned is 48h0m0s: at least 117h34m15s",
				"raise it, or lower outbox.retry.max_attempts or outbox.retry.max_backoff",
			},
		},
		"a tab":             {"domain: ordering\nproviders:\n\tdefault: {dialect: sqlite}\n", []string{"waybill.yaml: line ", "; line 3 is indented with a tab: use spaces"}},
		"several documents": {smallest + "---\ndomain: x\n", []string{"several documents"}},
		"not YAML":          {"domain: [\n", []string{"waybill.yaml: line "}},
		"empty":             {"", []string{"providers is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(write(t, c.text))
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// S11: no mistake in a file or in the environment is told with a secret in it.
func TestParse_S11_NoErrorHasASecret(t *testing.T) {
	const secret = "hunter22hunter22"
	for name, c := range map[string]struct{ text, variable, value string }{
		"a token with a space":       {smallest + "server: {token: '" + secret + " '}\n", "", ""},
		"a short one of several":     {smallest + "server: {tokens: [{name: a, role: read, token: " + secret[:8] + "}]}\n", "", ""},
		"both a token and a file":    {smallest + "server: {tokens: [{name: a, role: read, token: " + secret + ", file: x}]}\n", "", ""},
		"a list that is none":        {smallest + "server: {tokens: " + secret + "}\n", "", ""},
		"a variable that is no YAML": {smallest, "WAYBILL_SERVER_TOKENS", "[{name: a, token: " + secret},
		"a variable of words":        {smallest, "WAYBILL_SERVER_TOKENS", secret},
		"a token that is a list":     {smallest + "server: {token: [" + secret + "]}\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.variable != "" {
				t.Setenv(c.variable, c.value)
			}
			_, err := Parse(write(t, c.text))
			require.ErrorContains(t, err, "server.token")
			require.NotContains(t, err.Error(), secret[:8])
		})
	}
}

func TestParse_NoFile(t *testing.T) {
	_, err := Parse(filepath.Join(t.TempDir(), "missing.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestParse_ExternalBrokers(t *testing.T) {
	f, err := Parse(write(t, smallest+`outbox:
  external_brokers:
    - broker: partner
      envelope: waybill
      events: [OrderPlaced]
      extensions: []
      topics: {"ordering::order": orders}
      versions: {OrderPlaced: 1}
`))
	require.NoError(t, err)
	require.Equal(t, []outbox.Target{{
		Broker: "partner", Envelope: outbox.Stripped, Events: []string{"OrderPlaced"}, Extensions: []string{},
		Topics: map[string]string{"ordering::order": "orders"}, Versions: map[string]int{"OrderPlaced": 1},
	}}, f.External, "an empty list stays one: no extension leaves")

	for _, envelope := range outbox.Envelopes() {
		f, err := Parse(write(t, smallest+"outbox: {external_brokers: [{broker: partner, envelope: "+string(envelope)+"}]}\n"))
		require.NoError(t, err)
		require.Equal(t, []outbox.Target{{Broker: "partner", Envelope: envelope}}, f.External)
	}

	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "partner")
	f, err = Parse(write(t, smallest))
	require.NoError(t, err)
	require.Equal(t, []outbox.Target{{Broker: "partner"}}, f.External)

	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "[{broker: partner, events: [A, B]}]")
	f, err = Parse(write(t, smallest))
	require.NoError(t, err)
	require.Equal(t, []outbox.Target{{Broker: "partner", Events: []string{"A", "B"}}}, f.External)

	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "[{broker")
	_, err = Parse(write(t, smallest))
	require.ErrorContains(t, err, "WAYBILL_OUTBOX_EXTERNAL_BROKERS")
}

func TestParse_VariablesThatAreNoKeysAreIgnored(t *testing.T) {
	t.Setenv("WAYBILL_POSTGRES", "postgres://…")
	t.Setenv("WAYBILL_KAFKA", "127.0.0.1:9092")
	t.Setenv("WAYBILL_BROKERS", "none of a file's business")
	t.Setenv("WAYBILL_OUTBOX", "nor this")
	t.Setenv("WAYBILL_OUTBOX_WROKERS", "3")
	_, err := Parse(write(t, smallest))
	require.NoError(t, err)
}

func TestParse_AnEmptyVariableEmptiesText(t *testing.T) {
	t.Setenv("WAYBILL_SERVER_ADDR", "")
	f, err := Parse(write(t, smallest+"server: {addr: '127.0.0.1:9000'}\n"))
	require.NoError(t, err)
	require.Empty(t, f.Server.Addr, "no server")

	t.Setenv("WAYBILL_OUTBOX_CALLS", "")
	_, err = Parse(write(t, smallest))
	require.ErrorContains(t, err, `WAYBILL_OUTBOX_CALLS: outbox.calls is "", which is not a whole number`)
}

func TestParse_VariablesOfEntries(t *testing.T) {
	t.Setenv("WAYBILL_PROVIDERS_DEFAULT_DIALECT", "postgres")
	t.Setenv("WAYBILL_BROKERS_PARTNER_TOPIC_PREFIX", "elsewhere.")
	t.Setenv("WAYBILL_BROKERS_PARTNER_KIND", "nats")
	f, err := Parse(write(t, smallest))
	require.NoError(t, err)
	require.Equal(t, "postgres", f.providers[0].dialect)
	require.Equal(t, "elsewhere.", f.brokers[1].prefix)
	require.Equal(t, "nats", f.brokers[1].kind)
	require.Empty(t, f.brokers[1].shares, "another kind is another broker")
}

func TestParse_BrokersAreComparedAsTheEnvironmentLeavesThem(t *testing.T) {
	text := `providers: {default: {dialect: sqlite}}
brokers:
  default: {kind: kafka, addresses: ["h:1", "h:2"]}
  partner: {kind: kafka, addresses: ["old:1"]}
`
	f, err := Parse(write(t, text))
	require.NoError(t, err)
	require.Empty(t, f.brokers[1].shares)

	for _, value := range []string{"h:1,h:2", "h:3, h:2", `["h:2"]`} {
		t.Setenv("WAYBILL_BROKERS_PARTNER_ADDRESSES", value)
		_, err = Parse(write(t, text))
		require.ErrorContains(t, err, "brokers.partner is at the same place as brokers.default", value)
	}
	t.Setenv("WAYBILL_BROKERS_PARTNER_ADDRESSES", "[h:3, h:4]")
	f, err = Parse(write(t, text))
	require.NoError(t, err)
	require.Equal(t, []string{"h:3", "h:4"}, f.Brokers()[1].Addresses)
}

// One server may be two brokers, if their topics are apart.
func TestParse_BrokersWithDifferentPrefixes(t *testing.T) {
	for _, pair := range []string{
		"a: {kind: kafka, addresses: [h:1, h:2]}\n  b: {kind: kafka, addresses: [h:2], topic_prefix: b.}",
		"a: {kind: nats, embedded: ./data}\n  b: {kind: nats, embedded: ./data, topic_prefix: b.}",
		"a: {kind: nats, embedded: ./data}\n  b: {kind: nats, embedded: ./other}",
		"a: {kind: kafka, addresses: [h:1], topic_prefix: Team-a_1.}\n  b: {kind: memory, topic_prefix: \"team a/\"}",
		"a: {kind: nats, url: \"nats://h:1\", topic_prefix: ü:a.b.}\n  b: {kind: nats, url: \"nats://h:1\", topic_prefix: b}",
		"a: {kind: nats, url: \"nats://h:1\", topic_prefix: a.}\n  b: {kind: nats, url: \"nats://h:1\", topic_prefix: b.}",
	} {
		_, err := Parse(write(t, "providers: {default: {dialect: sqlite}}\nbrokers:\n  "+pair+"\n"))
		require.NoError(t, err, pair)
	}
}

func TestParse_TheDefaultProviderComesFirst(t *testing.T) {
	f, err := Parse(write(t, "providers:\n  analytics: {dialect: sqlite, path: a}\n  default: {dialect: sqlite, path: b}\n"))
	require.NoError(t, err)
	require.Equal(t, "default", f.providers[0].name)
	require.Equal(t, "analytics", f.providers[1].name)
}
