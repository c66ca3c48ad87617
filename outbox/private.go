package outbox

// publishedHeader is "false" in messages whose event is no part of its context's
// contract with others. Who handles one all the same is to hear of it.
const publishedHeader = "waybill-published"

// IsPrivate says whether a message's headers say that its event isn't published: its
// context may change it at any time.
func IsPrivate(headers map[string]string) bool { return headers[publishedHeader] == "false" }

// MarkPrivate writes into a message's headers that its event isn't published.
func MarkPrivate(headers map[string]string) { headers[publishedHeader] = "false" }
