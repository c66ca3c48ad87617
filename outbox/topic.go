package outbox

import "strings"

// DefaultTopic is where a stream category goes where no target says otherwise:
// "ordering.order" for "ordering::order".
func DefaultTopic(category string) string { return strings.ReplaceAll(category, "::", ".") }
