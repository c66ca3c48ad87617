package subscription

import "strings"

// tellOfPrivate says once that another context doesn't publish an event that is
// handled here: it comes, as both share a broker, and may change without notice. That is
// no mistake where one team has both.
func (r *Runner) tellOfPrivate(messageType string) {
	if _, told := r.private.LoadOrStore(messageType, true); !told {
		r.log.Info("a handler handles an event that its context doesn't publish, and that may change or end without notice: ask for domain.Published() at its declaration there", "type", messageType)
	}
}

// mostTold is of how many types that nobody declares the log tells: strangers may make up
// any number.
const mostTold = 20

// tellOfUnknown says once that messages of a type are let go, as the domain doesn't declare
// it. Of the context's own streams it knows all types, so that one was renamed, removed or is
// newer. What others send is usually somebody else's; but where nothing has been handled yet
// the name that is declared may be the wrong one.
func (r *Runner) tellOfUnknown(messageType string) {
	known := r.stream.Units.Domain()
	own := strings.HasPrefix(r.stream.Category, known.Name()+"::")
	if !own && r.handled.Load() > 0 {
		return
	}
	r.unknown.Lock()
	defer r.unknown.Unlock()
	if r.unknown.types[messageType] || len(r.unknown.types) >= mostTold {
		return
	}
	if r.unknown.types == nil {
		r.unknown.types = map[string]bool{}
	}
	r.unknown.types[messageType] = true
	if own {
		r.log.Warn("messages of this context come that this build doesn't declare, and are let go: if the event was renamed, give it a domain.Alias of its former name; if a newer build raises it, deploy one that declares it first", "type", messageType)
		return
	}
	r.log.Info("messages come of a type that isn't declared here, and are let go: if it is meant to be handled, correct the name in domain.PartnerEvent or domain.Foreign", "type", messageType)
}
