package brokertest

import (
	"path"
	"testing"

	"github.com/waybill-go/waybill/internal/suitetest"
)

// check runs a subtest of a group. If it fails, its log ends with its contract.
func (s suite) check(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	suitetest.Check(t, name, contracts[path.Base(t.Name())+"/"+name], test)
}

// What several contracts have in common.
const (
	lostForGood = "a message is settled that had no effect: it is lost."
	comesTwice  = "messages come again without need: inboxes absorb them, at the cost of work done twice."
	noRoom      = "a program that stops or loses its server hangs, and nobody is told."
	lagIsWrong  = "status, metrics and alerts say a wrong lag, so that a backlog isn't seen."
	declareLess = "or leave it undeclared: the suite then doesn't ask for it, and the documentation of your adapter says so."
	unclassed   = "an outage uses up the attempts of rows, and in the end abandons them; or rows count as failed that were stored, and come twice."
	classify    = "return broker.Scoped errors: Permanent for what the message itself is, Unavailable only where nothing was handed over, Unknown where the answer is missing."
	oneResult   = "return a *broker.PublishError that has the failed messages by their index, and nil only if all are stored."
)

// contracts has the subtests by group and name.
var contracts = map[string]suitetest.Contract{
	"Publish/RoundTrip": suitetest.Of(
		"A message arrives with its id, key, body and headers as they were published, byte by byte, and with the attributes of its CloudEvent under the names of the protocol's binding.",
		"inboxes don't recognise duplicates, keys lose their order, and consumers can't decode what they get.",
		"carry ID and Key beside the headers, take bodies and keys for bytes, encode header values that the protocol can't have, and send Message.CloudEvent as headers. Where deliveries have a Partition or a time Published, say so in Config.Declared, and only there.",
	),
	"Publish/Nothing": suitetest.Of("Publish of no messages does nothing and is no error.", "a call with nothing to do counts as a failed one.", "return nil for an empty slice before anything is sent."),
	"Publish/ThousandOverFiftyKeys": suitetest.Of(
		"All messages of large calls arrive, with Capabilities.KeyOrder each key's in the order of publishing.", lostForGood, "wait for the answer to each message before Publish returns.",
	),
	"Publish/Concurrently": suitetest.Of(
		"Publish may be called by several goroutines at once, and each gets the answer to its own messages.", lostForGood, "guard what calls share, and match answers to messages by something that is the call's own.",
	),
	"Publish/Dedup": suitetest.Of(
		"With Capabilities.Dedup, a message that is published again under its id is stored once.",
		"after a crash partners, who have no inbox, get the same message twice where your documentation promised once.",
		"hand Message.ID to what the broker compares, "+declareLess,
	),
	"Publish/EnsureTopicsAgain": suitetest.Of(
		"EnsureTopics creates what is missing, leaves alone what is there with its messages, and may be called by several at once.", "a program that starts empties a topic, or doesn't start because another one does at the same time.",
		"take \"exists already\" for success, and never delete or alter.",
	),
	"Publish/UnknownTopic_F28": suitetest.Of(
		"Publishing to a topic that doesn't exist fails soon, alone, and not for good.", "events to a topic that somebody forgot count as published, or are abandoned, or hold up all other topics.",
		"check that the broker routed the message (mandatory flags, alternate exchanges, acknowledgements), and don't return Permanent; if the broker creates topics by itself, declare Config.Declared.AutoTopics.",
	),
	"Publish/ContextDone": suitetest.Of(
		"Publish with a context that is done returns an error for every message of which it doesn't know that it is stored.", noRoom, "look at ctx before and while you wait, and report what was sent by then as Unknown.",
	),

	"Partial/TooLarge_S1_11":    suitetest.Of("A message that is too large fails for good and alone, and says so of itself.", unclassed, classify+" "+oneResult),
	"Partial/transient_S1_11":   suitetest.Of("A message that the broker refuses for now fails alone.", unclassed, oneResult),
	"Partial/unavailable_S1_11": suitetest.Of("A message that was not handed over fails as such, alone, and isn't stored.", unclassed, classify),
	"Partial/unknown_S1_11":     suitetest.Of("A message whose answer is missing fails as unknown, alone.", unclassed, classify),
	"Partial/permanent_S1_11":   suitetest.Of("A message that can never be stored fails as such, alone.", unclassed, oneResult),

	"Consume/Limit": suitetest.Of(
		"Receive waits for at least one message and returns at most limit.", "a subscription takes more than it has room for, or turns in circles.", "cut what the client hands out to limit and keep the rest for the next call.",
	),
	"Consume/NewGroupStartsAtTheOldest": suitetest.Of(
		"A group that joins for the first time gets everything that the topic still has.", "a consumer that is added later, or started after its sender, never gets the events from before.",
		"create groups at the start of the topic; a broker of queues needs Config.CreateGroup, and your documentation has to say that queues come first.",
	),
	"Consume/ContextDone": suitetest.Of("Receive returns the error of its context when that is done, and the consumer goes on with the next one.", noRoom, "return ctx.Err() itself, wrapped or not, and lose nothing that arrives meanwhile."),

	"Redelivery/OneOut":                suitetest.Of("What is released, or was out when its consumer left, comes again before its followers; what was acknowledged doesn't.", lostForGood, "settle each message by itself, "+declareLess),
	"Redelivery/AfterClose":            suitetest.Of("What a consumer received and didn't acknowledge comes again to its group after Close.", lostForGood, "give back what is out in Close, "+declareLess),
	"Redelivery/AckedDoesNotComeAgain": suitetest.Of("What was acknowledged, in whatever order, doesn't come again once the consumer has closed.", comesTwice, "make acknowledgements known to the server before Close returns."),
	"Redelivery/AckNeverRunsAhead": suitetest.Of(
		"An acknowledgement settles its own message and no other one that is still out.", lostForGood,
		"where the broker has one position for many messages, move it only over a leading run of acknowledged ones.",
	),
	"Redelivery/AfterRelease":           suitetest.Of("What is released comes again to its group, in its key's order where there is Capabilities.KeyOrder.", "a subscription that makes room loses what it gave back, or waits for it for ever.", "hand released messages out again at once, to this member or another one."),
	"Redelivery/ReleasedToo_AfterClose": suitetest.Of("What was released comes again also if the consumer closes before that.", lostForGood, "treat what was released as out until somebody has acknowledged it."),
	"Redelivery/StopAndRestart_C79":     suitetest.Of("Messages go on coming, each until it is acknowledged, while consumers stop and start in the middle of their work.", lostForGood, "give back what is out in Close, and acknowledge by message."),
	"Redelivery/InKeyOrderAfterClose":   suitetest.Of("With Capabilities.KeyOrder, what comes again comes before what is later of its key.", "consumers get an aggregate's events in another order than it raised them.", "hold a key's later messages while earlier ones come again, "+declareLess),

	"Groups/EachGetsAll":        suitetest.Of("Each of several groups gets every message of a topic.", "two subscriptions of one topic take each other's messages: half of the events have no effect in either.", "give each group a position or a queue of its own, "+declareLess),
	"Groups/OneNameOnTwoTopics": suitetest.Of("A group's name on one topic has nothing to do with the same name on another one.", "a subscription skips what another one of the same name has read.", "let positions belong to topic and group together."),
	"Groups/OwnPosition_C77":    suitetest.Of("Who reads a topic under another group's name moves no position but its own.", "a replay takes messages from those who are at work.", "let positions belong to groups."),
	"Groups/Partitions_S0_20": suitetest.Of(
		"Where Delivery.Partition is set, a key stays in its part, and the next member gets what isn't acknowledged of a part, in order, before what is later.",
		"an inbox forgets by it which messages can't come any more, and a duplicate has its effect twice.", "leave Delivery.Partition empty unless a member has the part to itself, and don't declare it.",
	),
	"Groups/MembersShare": suitetest.Of(
		"The members of a group get each message once between them: a message is with one member at a time, or its first delivery's Lost is closed before it comes again.",
		"two processes work on one message at once, and with Capabilities.KeyOrder a key's messages overtake each other.", "hand a message to one member, close Lost when it is taken back, and declare Standby if one member works while the others wait.",
	),
	"Groups/MembersComeAndGo": suitetest.Of("While members come and go a group loses nothing.", lostForGood, "give what a member leaves behind to those who stay, by themselves and soon."),

	"Lag/Declared":           suitetest.Of("Consumers are broker.Lagging if, and only if, Config.Declared.Lag says so.", lagIsWrong, "implement Lag, "+declareLess),
	"Lag/Counts":             suitetest.Of("Lag is how many messages a consumer's share has not acknowledged, whether they wait, are out or were released.", lagIsWrong, "count what is not acknowledged, not what is not received."),
	"Lag/Closed":             suitetest.Of("Lag of a closed consumer is an error.", lagIsWrong, "return an error while the share isn't known."),
	"Lag/Behind":             suitetest.Of("Lag counts also what the consumer hasn't fetched.", lagIsWrong, "ask the broker, and don't count what lies in the client."),
	"Lag/AfterTheOthersLeft": suitetest.Of("Who takes over a share has its whole lag.", lagIsWrong, "count from what the group has acknowledged, not from what this member has seen."),
	"State/Declared":         suitetest.Of("Consumers are broker.Stateful if, and only if, Config.Declared.State says so.", "a consumer that gets nothing looks healthy.", "implement State, "+declareLess),
	"State/Joined":           suitetest.Of("State says since when a consumer is in its group, and after Close that it isn't.", "health checks say that a subscription consumes which doesn't.", "set Joined and Since when the group lets the member in, or makes it a standby, and when it leaves."),
	"State/Outage":           suitetest.Of("Within ten seconds of losing its server a consumer says that it isn't in its group, and why, and afterwards that it is back.", "a consumer that gets nothing looks healthy.", "notice the lost connection also while nothing is received: by the client's events, or by asking every few seconds."),

	"Transactions/Declared":                suitetest.Of("The broker is broker.Transactional if, and only if, Config.Declared.Transactions says so.", "an engine asks for exactly once of a broker that can't, or doesn't of one that can.", "implement Transact, "+declareLess),
	"Transactions/StoresAllWithItsMark":    suitetest.Of("A transaction stores all of its messages and its mark together, and who opens the id next gets the last committed mark.", "after a crash messages are stored twice, or not at all, though exactly once was asked for.", "write the mark within the transaction."),
	"Transactions/FencesWhoHadTheID":       suitetest.Of("Who opens a transactional id ends what its former owner left open, and that one can store nothing any more.", "a process that was paused stores a second copy.", "use what the broker has for fencing, such as epochs."),
	"Transactions/StoresNothingIfOneFails": suitetest.Of("If a message of a transaction fails, nothing of it is stored, and the error says which message is to blame.", "rows that were stored count as failed, and come twice.", "abort, and return broker.ErrTakenBack for those that were taken back."),

	"Restart/Reopen":    suitetest.Of("With Capabilities.Durable, messages and the groups' progress are kept while nobody is connected.", lostForGood, "keep topics and groups on the server, "+declareLess),
	"Restart/Outage":    suitetest.Of("Publish to a server that is down returns soon with an error, and works by itself when it is back; with Config.Declared.Outage it comes to say Unavailable.", unclassed, classify+" Connect again by yourself."),
	"Restart/UnderLoad": suitetest.Of("What was acknowledged to a publisher arrives, whatever happens to the server, and publishers and consumers continue by themselves.", lostForGood, "return nil only for what the server has stored durably, and join again after a lost connection."),
}
