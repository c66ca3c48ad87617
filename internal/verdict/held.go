package verdict

import "slices"

// token names a claim of a row.
type token struct{ seq, member, claim int64 }

// claim is one from its begin to its end.
type claim struct{ from, end Step }

// token is the claim that a step begins or ends.
func (s Step) token() token { return token{s.Seq, s.Member, s.Claim} }

// happened finds what befell a claim's owner while it had the row; -1: nothing of this kind,
// or with "" of any.
func (e Evidence) happened(c claim, kind string) int {
	pid := pidOf(c.from.Owner)
	return slices.IndexFunc(e.Incidents, func(i Incident) bool {
		return (kind == "" || i.Kind == kind) && (i.PID == 0 || i.PID == pid) &&
			!i.From.After(c.end.At.Add(slack)) && !i.Until.Before(c.from.At.Add(-slack))
	})
}

// waitsStored says that a row may wait behind a held one though the broker has copies of it.
// A member lost its lease after it had sent both, and its settle came too late; the next one
// sent the first again, and that copy was refused for ever. So the broker has the first row
// before all copies of the other, the other was never claimed once the first was held, and
// for each copy there is a claim, not the one that held the first, which a fault ended.
func (e Evidence) waitsStored(row, first Row) bool {
	sent, copies := false, 0
	for _, d := range e.Deliveries {
		sent = sent || d.ID == first.ID
		if d.ID == row.ID {
			if !sent {
				return false
			}
			copies++
		}
	}
	open := map[token]Step{}
	var lost []claim
	var hold *Step
	for _, s := range e.Steps {
		switch {
		case s.Seq == first.Seq && s.New == "abandoned":
			hold = &s
		case s.Seq == first.Seq && s.New == "processing": // an operator let it go again
			hold = nil
		case s.Seq != row.Seq:
		case s.New == "processing" && hold != nil:
			return false
		case s.New == "processing":
			open[s.token()] = s
		case s.Old == "processing":
			if c := (claim{open[s.token()], s}); s.New != "published" && e.happened(c, "") >= 0 {
				lost = append(lost, c)
			}
		}
	}
	if hold == nil {
		return false
	}
	lost = slices.DeleteFunc(lost, func(c claim) bool { return c.end.Member == hold.Member && c.end.Claim == hold.Claim })
	return row.Status == "pending" && copies <= len(lost)
}
