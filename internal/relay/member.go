package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

var errEnded = errors.New("outbox: the lane's membership has ended")

// membership is one life of a lane's member: from a join until it is found dead, or
// ends itself. Its context ends with it, and the calls of the broker with that.
type membership struct {
	id    MemberID
	ctx   context.Context
	leave context.CancelCauseFunc
}

// member is a lane's membership and what it owns. It is safe for concurrent use: the
// keeper renews it while the lane's loop takes and releases.
type member struct {
	mu  sync.Mutex
	now *membership // nil: it has none
	// until is the begin of the request that made or renewed the membership, plus the
	// lease, less a margin, on this process's monotonic clock. The database ends it
	// later. It saves duplicates; that nothing else goes wrong rests on tokens.
	until time.Time
	parts map[int]bool
	// changing counts the takes and releases that are out, changes all that parts has seen: a
	// renewal that was out meanwhile doesn't know what is the member's own.
	changing, changes int
}

// joined begins a life.
func (m *member) joined(hard context.Context, id MemberID, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, leave := context.WithCancelCause(hard)
	m.now = &membership{id: id, ctx: ctx, leave: leave}
	m.until, m.parts = until, map[int]bool{}
	m.changes++
}

// ended ends the life of that number, and says how many partitions it had. Another,
// younger one goes on.
func (m *member) ended(id MemberID) (parts int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil || m.now.id != id {
		return 0
	}
	m.now.leave(errEnded)
	m.now = nil
	parts = len(m.parts)
	m.parts = nil
	return parts
}

// current is the life that may be relied on; nil: there is none at the moment.
func (m *member) current(now time.Time) *membership {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil || !now.Before(m.until) {
		return nil
	}
	return m.now
}

// life is the present one, though it may not be relied on; nil: there is none.
func (m *member) life() *membership {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// relies says whether a life is the present one, and its lease is not about to end.
func (m *member) relies(life *membership, now time.Time) bool { return m.current(now) == life }

// owned is what is its own, if that has changed since known, of which 0 is before all.
func (m *member) owned(known int) (parts []int, changes int, changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes == known {
		return nil, known, false
	}
	return slices.Sorted(maps.Keys(m.parts)), m.changes, true
}

func (m *member) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.parts)
}

func (m *member) owns(part int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parts[part]
}

// change notes that a take or a release begins; the function that it returns, that it
// has ended: with what it took, and what it gave back.
func (m *member) change(life *membership) (ended func(took, gave []int)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changing++
	return func(took, gave []int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changing--
		m.changes++
		if m.now != life {
			return
		}
		for _, p := range took {
			m.parts[p] = true
		}
		for _, p := range gave {
			delete(m.parts, p)
		}
	}
}

// asking is a renewal that is about to be sent.
type asking struct {
	life    *membership
	begin   time.Time
	changes int
	mixed   bool // a take or a release was out at its begin
}

func (m *member) ask(begin time.Time) (a asking, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return asking{life: m.now, begin: begin, changes: m.changes, mixed: m.changing > 0}, m.now != nil
}

// renewed takes in the answer of a renewal: it lives until then, and this is its own.
// A take that wasn't answered is found this way. What was taken or released while the
// renewal was out isn't in the answer for sure; the next one tells.
func (m *member) renewed(a asking, until time.Time, parts []int) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now != a.life {
		return false
	}
	m.until = until
	if a.mixed || m.changing > 0 || m.changes != a.changes {
		return false
	}
	own := make(map[int]bool, len(parts))
	for _, p := range parts {
		own[p] = true
	}
	if changed = !maps.Equal(own, m.parts); changed {
		m.parts = own
		m.changes++
	}
	return changed
}

// keeper keeps the memberships of all lanes of a relay, on a goroutine of its own: a
// join for those that have none and a renewal for the others, each one statement,
// whatever there is to publish.
type keeper struct {
	r    *Relay
	soon chan struct{} // holds one: don't wait for the next third of the lease
	is   string        // which database it is

	tried chan struct{} // closed after the first turn

	mu      sync.Mutex
	begun   time.Time     // when the last renewal of all that succeeded began
	lost    time.Time     // when the last that missed a membership began: the server may have crashed before
	renewed chan struct{} // closed when there is a later one
}

func newKeeper(r *Relay) *keeper {
	return &keeper{r: r, soon: make(chan struct{}, 1), tried: make(chan struct{}), renewed: make(chan struct{})}
}

// hurry makes the next turn come at once: health has changed, or a life has ended.
func (k *keeper) hurry() {
	select {
	case k.soon <- struct{}{}:
	default:
	}
}

// run keeps the memberships until finished.
func (k *keeper) run(hard context.Context, finished <-chan struct{}) {
	lease := k.r.cfg.Outbox.Lease
	for first := true; ; first = false {
		wait := lease / 3
		if !k.turn(hard) {
			wait = k.r.random.around(min(lease/10, time.Second) / 2)
		}
		if first {
			close(k.tried)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-k.soon:
		case <-finished:
		}
		timer.Stop()
		select {
		case <-finished: // whatever else there was
			return
		default:
		}
	}
}

// turn is one renewal, and a join of lanes without a membership.
func (k *keeper) turn(hard context.Context) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			for _, l := range k.r.each {
				l.crashed("keeping its membership", v)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(urgent(hard), k.r.cfg.Outbox.Lease/3)
	defer cancel()
	err := k.here(ctx)
	if err == nil {
		err = k.renew(ctx)
	}
	var refused map[*lane]error
	if err == nil {
		refused, err = k.join(ctx, hard)
	}
	for _, l := range k.r.each {
		l.database.Note(hard, keeping, cmp.Or(err, refused[l]))
	}
	return err == nil && len(refused) == 0
}

// here ends the memberships if the database is not the one that its outbox was written in, or
// has become another one: a standby that was promoted, say, and accepted before this process
// has looked.
func (k *keeper) here(ctx context.Context) error {
	if k.r.cfg.Here == nil {
		return nil
	}
	is, err := k.r.cfg.Here(ctx)
	_, moved := errors.AsType[*outbox.MovedError](err)
	other := is != "" && k.is != "" && is != k.is
	k.is = cmp.Or(is, k.is)
	if moved || other {
		k.r.endLives()
	}
	if other {
		k.r.forgetNumbers()
	}
	return err
}

func (k *keeper) until(begin time.Time) time.Time {
	lease := k.r.cfg.Outbox.Lease
	return begin.Add(lease - outbox.Margin(lease))
}

func (k *keeper) renew(ctx context.Context) error {
	begin := time.Now()
	asked := map[MemberID]asking{}
	lanes := map[MemberID]*lane{}
	var renewals []Renewal
	for _, l := range k.r.each {
		a, ok := l.member.ask(begin)
		if !ok {
			continue
		}
		healthy, trouble := l.health.state()
		renewals = append(renewals, Renewal{Member: a.life.id, Target: l.Target, Healthy: healthy, Trouble: trouble, Broker: IdentityOf(l.Broker)})
		asked[a.life.id], lanes[a.life.id] = a, l
	}
	if len(renewals) > 0 {
		answer, err := k.r.cfg.Store.Renew(ctx, renewals, k.r.cfg.Outbox.Lease)
		if err != nil {
			return err
		}
		for _, m := range answer {
			if l := lanes[m.Member]; l != nil && l.member.renewed(asked[m.Member], k.until(begin), m.Parts) {
				l.wake.ring()
			}
			delete(lanes, m.Member)
		}
		k.note(begin, len(lanes) > 0)
	}
	if len(lanes) > 0 { // A crash of the server gives numbers again that only transactions had drawn which it ended.
		k.r.forgetNumbers()
	}
	k.bury(ctx, lanes)
	return nil
}

// bury ends lives that the database doesn't know any more: their leases had run out, or the
// database's server crashed, and what they had settled last may be queued again. With the
// life ends what it thinks that it has read. After a crash the member's row is still there:
// it goes at once, lest its partitions wait for the end of the lease. With transactions they do.
func (k *keeper) bury(ctx context.Context, lanes map[MemberID]*lane) {
	var gone []MemberID
	for _, id := range slices.Sorted(maps.Keys(lanes)) {
		l := lanes[id]
		l.lost(id)
		if !l.exact {
			gone = append(gone, id)
		}
	}
	if len(gone) == 0 {
		return
	}
	if err := k.r.cfg.Store.Leave(ctx, gone); err != nil {
		k.r.log.Warn("partitions of memberships that are gone wait until their leases have run out", "provider", k.r.cfg.Provider, "error", err)
	}
}

// join makes members of the lanes that have no membership, unless the relay stops. Those that
// can't join hold up no other.
func (k *keeper) join(ctx, hard context.Context) (refused map[*lane]error, err error) {
	if k.r.stopping() {
		return nil, nil
	}
	var lanes []*lane
	var joinings []Joining
	for _, l := range k.r.each {
		if l.member.life() == nil {
			lanes, joinings = append(lanes, l), append(joinings, Joining{Lane: l.id, Target: l.Target})
		}
	}
	if len(lanes) == 0 {
		return nil, nil
	}
	begin := time.Now()
	members, err := k.r.cfg.Store.Join(ctx, k.r.name, joinings, k.r.cfg.Outbox.Lease)
	if err != nil {
		return nil, err
	}
	refused = map[*lane]error{}
	for i, l := range lanes {
		if members[i] == 0 {
			refused[l] = fmt.Errorf("outbox: target %q had number %d when this process started, and has another in this database, which was restored or whose outbox_lanes was emptied: restart this process, and see with waybill doctor that no rows are left under the old one", l.Target, l.id)
			continue
		}
		l.member.joined(hard, members[i], k.until(begin))
		l.wake.ring()
	}
	k.r.hint() // shares have changed
	return refused, nil
}

func (k *keeper) note(begin time.Time, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begun = begin
	if lost {
		k.lost = begin
	}
	close(k.renewed)
	k.renewed = make(chan struct{})
}

// durable waits for a renewal that began after since: it has made durable what was
// written before. It is false if ctx ended first, or the server may have crashed meanwhile.
func (r *Relay) durable(ctx context.Context, since time.Time) bool {
	k := r.keeper
	for {
		k.mu.Lock()
		begun, lost, renewed := k.begun, k.lost, k.renewed
		k.mu.Unlock()
		if begun.After(since) {
			return !lost.After(since)
		}
		select {
		case <-renewed:
		case <-ctx.Done():
			return false
		}
	}
}
