package correlation

import (
	"slices"
	"time"
)

// cut leaves out the latest of too many messages. It comes before what asks about each.
func (t *Trace) cut() {
	if t.options.Most == 0 || len(t.order) <= t.options.Most {
		return
	}
	began := t.begins()
	slices.SortStableFunc(t.order, func(a, b *Message) int { return began[a].Compare(began[b]) })
	for _, m := range t.order[t.options.Most:] {
		delete(t.known, m.MessageID)
		t.LeftOut++
	}
	t.order = t.order[:t.options.Most]
}

// tree puts each message below its cause. One whose cause is not here is below what
// stands for that; the ids are whatever somebody wrote, so that a circle may be among
// them, which begins somewhere.
func (t *Trace) tree() {
	for _, m := range slices.Clone(t.order) {
		if m.CausationID != "" {
			t.of(m.CausationID)
		}
	}
	t.cut()
	began := t.begins()
	slices.SortStableFunc(t.order, func(a, b *Message) int { return began[a].Compare(began[b]) })
	placed := map[*Message]bool{}
	for _, m := range t.order {
		m.State = m.state()
		cause := t.known[m.CausationID]
		if cause == nil || t.circular(m) && !placed[cause] {
			t.Messages = append(t.Messages, m)
		} else {
			cause.Caused = append(cause.Caused, m)
		}
		placed[m] = true
	}
}

// begins are when the messages were raised: what nothing is known of, with the first
// that it caused.
func (t *Trace) begins() map[*Message]time.Time {
	began := map[*Message]time.Time{}
	for _, m := range t.order {
		at := m.began()
		for _, of := range []*Message{m, t.known[m.CausationID]} {
			if of != nil && of.OccurredAt == nil && (began[of].IsZero() || at.Before(began[of])) {
				began[of] = at
			}
		}
		if m.OccurredAt != nil {
			began[m] = at
		}
	}
	return began
}

// began is when a message was raised, or first failed, if it is from elsewhere.
func (m *Message) began() time.Time {
	switch {
	case m.OccurredAt != nil:
		return *m.OccurredAt
	case len(m.DeadLetters) > 0:
		return m.DeadLetters[0].FirstAt
	case len(m.Handled) > 0:
		return m.Handled[0].At
	}
	return time.Now()
}

// circular says whether a message is among what caused it.
func (t *Trace) circular(m *Message) bool {
	seen := map[*Message]bool{}
	for at := m; at != nil && at.CausationID != "" && !seen[at]; {
		seen[at] = true
		if at = t.known[at.CausationID]; at == m {
			return true
		}
	}
	return false
}
