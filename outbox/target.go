package outbox

import "github.com/waybill-go/waybill/domain"

// Target is an external broker that published events go to. Bodies are final
// at commit, so whoever commits knows their form.
type Target struct {
	Broker     string            // Its name in the engine. Required.
	Events     []string          // Names such as "OrderPlaced". Nil: all published ones.
	Extensions []string          // Extensions that may leave. Nil: those of the user, and not the tenant. Empty: none.
	Topics     map[string]string // Stream category to topic, where it is not the broker's rule.
}

// Check returns all that is wrong with t for the events of d, or nil.
func (t Target) Check(d *domain.Domain) error { panic("to be written") }
