package brokertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// requireDeclared compares what is declared with what is there.
func requireDeclared(t *testing.T, name string, declared, is bool, what string) {
	t.Helper()
	switch {
	case declared && !is:
		require.FailNow(t, "brokertest: declared and missing", "Config.Declared.%s says that %s, and that isn't so", name, what)
	case is && !declared:
		require.FailNow(t, "brokertest: there and not declared", "%s, and Config.Declared.%s doesn't say so", what, name)
	}
}

// left says what the suite did not ask for, because nothing declares it.
func (s suite) left(t *testing.T) {
	c := s.open(t).Capabilities()
	for _, of := range []struct {
		asked bool
		what  string
	}{
		{c.Prefix, "Capabilities.Prefix: several messages of a key in one call. The outbox sends one message of a key per call, which takes longer"},
		{c.KeyOrder, "Capabilities.KeyOrder: the order of a key's messages. Handlers must need none"},
		{c.Groups, "Capabilities.Groups: groups that each get all messages. There is room for one subscription per topic, in one process"},
		{c.Redelivery, "Capabilities.Redelivery: what isn't acknowledged comes again. A process that dies loses what it had received"},
		{c.Dedup, "Capabilities.Dedup: messages that are published again are stored once. Partners compare ids"},
		{c.Durable, "Capabilities.Durable: messages that survive a restart, and with it all subtests of Restart"},
		{s.Declared.Outage, "Declared.Outage: the class of failures while the server is down. An outage may use up attempts of rows"},
		{s.Declared.Scopes, "Declared.Scopes: what failures concern. A topic that fails alone may use up attempts of its rows"},
		{s.Declared.Lag, "Declared.Lag: how much is left. Alerts don't see a backlog of consumers"},
		{s.Declared.State, "Declared.State: how consumers fare. One that gets nothing looks like one for which there is nothing"},
		{s.Stop != nil, "Config.Stop: a server that stops and comes back"},
		{s.TooLarge > 0, "Config.TooLarge: a message that is refused for good"},
	} {
		if !of.asked {
			t.Log("not asked for: " + of.what)
		}
	}
}
