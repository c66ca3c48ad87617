package subscription

import (
	"cmp"
	"container/list"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

const (
	perLane  = 32       // Deliveries held for each lane, besides those that wait for a retry.
	maxBatch = 512      // Deliveries received at a time.
	maxHeld  = 8192     // Deliveries held, with those that wait behind a retry.
	maxBytes = 64 << 20 // Their bodies.

	steady      = time.Second           // Who joined so long ago and has not failed is well.
	regroup     = 10 * time.Millisecond // After which a broker has told all that it took back.
	patience    = 10 * time.Second      // How long to try to acknowledge before joining anew.
	finishTime  = 10 * time.Second      // What handlers get when the broker has failed.
	abortTime   = 2 * time.Second       // What they get when their context is done.
	leavingTime = 5 * time.Second       // What acknowledging, giving back and leaving may take.
)

// session is a runner's work with one consumer.
//
//	take → hold, look up → queue by key → lanes → settled → acknowledge
//
// A queue is in ready, or with one lane, or waits for a retry. So the messages
// of a key are worked on one after the other, and a key that waits occupies no
// lane.
type session struct {
	r        *Runner
	consumer broker.Consumer

	intake context.Context // Done when no more is received.
	fail   context.CancelCauseFunc
	quit   chan struct{}   // Closed: lanes take no more.
	work   context.Context // The handlers'.
	abort  context.CancelFunc
	lanes  sync.WaitGroup

	ready chan *queue   // Never full: a queue is in it once, and holds a delivery.
	acks  chan struct{} // There is something to acknowledge.
	last  chan struct{} // Closed: and there will be no more.
	freed chan struct{} // There may be room.

	mu      sync.Mutex
	order   int64
	known   map[string]*message // Not settled, by id; the latest of those with the same.
	queues  map[string]*queue   // By key.
	settled []broker.Delivery   // To be acknowledged.
	held    int                 // Deliveries, until they are acknowledged or lost.
	bytes   int                 // Their bodies.
	waiting int                 // Messages whose queue waits for a retry.
	floors  floors
}

// queue is the messages of one key, in order, at least one.
type queue struct {
	messages []*message
	retry    *time.Timer // Not nil while the queue waits.
}

// serve works until the consumer fails or the intake ends, and leaves the group.
func (r *Runner) serve(consumer broker.Consumer) error {
	s := &session{
		r: r, consumer: consumer,
		quit: make(chan struct{}), last: make(chan struct{}),
		ready: make(chan *queue, maxHeld), acks: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		known: map[string]*message{}, queues: map[string]*queue{},
		floors: floors{marks: r.evictor.marks, open: map[string]*list.List{}},
	}
	s.work, s.abort = context.WithCancel(r.work)
	defer s.abort()
	s.intake, s.fail = context.WithCancelCause(r.intake)
	defer s.fail(nil)
	// What is done must get through to the broker when all else has ended.
	leaving, stopLeaving := context.WithCancel(context.Background())
	defer stopLeaving()

	acknowledged := make(chan struct{})
	go func() {
		defer close(acknowledged)
		s.acknowledge(leaving)
	}()
	for range r.stream.Lanes {
		s.lanes.Go(s.lane)
	}
	r.session.Store(s)
	defer r.session.Store(nil)
	r.running.Store(true)
	well := time.AfterFunc(steady, r.brokerUp)
	err := s.take(s.intake)
	well.Stop()
	r.running.Store(false)
	s.fail(err)

	stopped := r.intake.Err() != nil
	s.finish(stopped)
	defer time.AfterFunc(leavingTime, stopLeaving).Stop()
	close(s.last)
	<-acknowledged
	s.leave(leaving, stopped)
	return err
}

// take receives until that fails or ctx is done.
func (s *session) take(ctx context.Context) error {
	for {
		limit, err := s.room(ctx)
		if err != nil {
			return err
		}
		deliveries, err := s.consumer.Receive(ctx, limit)
		if ctx.Err() != nil {
			s.hold(deliveries)
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		s.r.brokerUp()
		if err := s.accept(ctx, s.hold(deliveries)); err != nil {
			return err
		}
	}
}

// room waits until receiving is worth while, and says how many.
func (s *session) room(ctx context.Context) (int, error) {
	window := min(s.r.stream.Lanes*max(perLane, 4*s.r.stream.Batch), maxHeld)
	batch := min(window/4, maxBatch)
	for {
		s.mu.Lock()
		free := min(window-(s.held-s.waiting), maxHeld-s.held)
		if s.bytes >= maxBytes {
			free = 0
		}
		s.mu.Unlock()
		paused, changed := s.r.valve.paused()
		if free >= batch && !paused {
			return batch, nil
		}
		select {
		case <-s.freed:
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// hold notes deliveries, and returns the messages that are new here. One that is
// held already gets the delivery in addition: its outcome goes for both, and no
// handler sees the duplicate.
func (s *session) hold(deliveries []broker.Delivery) []*message {
	arrived := make([]*message, len(deliveries))
	for i, d := range deliveries {
		arrived[i] = read(d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var fresh []*message
	spots := s.floors.add(deliveries)
	for i, m := range arrived {
		s.held++
		s.bytes += len(m.Body)
		s.r.inFlight.Add(1)
		if same := s.known[m.id]; same != nil && (same.working || !lost(same.deliveries...)) {
			same.deliveries = append(same.deliveries, m.deliveries...)
			same.spots = append(same.spots, spots[i])
			continue
		}
		m.spots = []*spot{spots[i]}
		// One that was lost, and waits for its turn to be dropped, is not revived:
		// what comes again has its place where it comes.
		s.order++
		m.order = s.order
		s.known[m.id] = m
		fresh = append(fresh, m)
	}
	return fresh
}

// accept settles what the inbox knows, and queues the rest.
func (s *session) accept(ctx context.Context, fresh []*message) error {
	if len(fresh) == 0 {
		return nil
	}
	// The look-up comes after hold: a message that was settled between the two
	// would have got the new delivery, and one settled before is in the inbox.
	records, err := s.r.look(ctx, s.r.incoming, fresh)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range fresh {
		m.record = records[m]
		m.counted = m.counted || m.attempts > 0
		if m.done {
			s.settle(m, duplicate)
			continue
		}
		q := s.queues[m.key]
		if q == nil {
			q = &queue{}
			s.queues[m.key] = q
			s.ready <- q
		}
		q.messages = append(q.messages, m)
		if q.retry != nil {
			s.waiting++
		}
	}
	return nil
}

// oldest is when the oldest message that is held was published.
func (s *session) oldest() (at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.known {
		if at.IsZero() || m.published.Before(at) {
			at = m.published
		}
	}
	return at
}

// lane works on one queue after the other.
func (s *session) lane() {
	for {
		select {
		case <-s.quit: // before ready, if both can be
			return
		default:
		}
		select {
		case <-s.quit:
			return
		case q := <-s.ready:
			p, ok := s.r.valve.enter(s.quit)
			if !ok {
				return
			}
			if !s.together(p, q) {
				s.step(p, q)
			}
		}
	}
}

// step works on the first message of a queue.
func (s *session) step(p pass, q *queue) {
	s.mu.Lock()
	m := q.messages[0]
	if s.dropLost(m); len(m.deliveries) == 0 {
		s.sweep(q)
		s.mu.Unlock()
		s.r.valve.done(p)
		return
	}
	m.working = true
	ctx, cancel := s.unlessLost(m)
	s.mu.Unlock()
	result, wait := s.r.attempt(ctx, p, m)
	cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	m.working = false
	switch result {
	case aborted:
		// Stopped: it is given back with the rest. Lost: the next step sees to it.
		if s.work.Err() == nil {
			s.ready <- q
		}
	case failed, delayed:
		if wait == 0 {
			s.ready <- q
		} else {
			s.pause(q, wait)
		}
	default:
		s.settle(m, result)
		if result == setAside && s.r.stream.OnParked == Hold {
			for _, later := range q.messages[1:] {
				later.behind = m.behind + 1
			}
		}
		s.next(q, 1)
	}
}

// unlessLost is the context in which messages are worked on: it ends when the
// broker has taken one of them back. The lock is held.
func (s *session) unlessLost(messages ...*message) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(s.work)
	watched := map[<-chan struct{}]bool{nil: true}
	for _, m := range messages {
		taken := m.deliveries[0].Lost
		if watched[taken] {
			continue
		}
		watched[taken] = true
		go func() {
			select {
			case <-taken:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// run is the beginning of a queue that is handled together with others.
type run struct {
	queue    *queue
	messages []*message
}

// together handles messages of q and of other queues that are ready in one unit of
// work, and says whether it did. Where one fails, nothing has happened, and each
// goes by itself; so whatever is special about a message is done by step.
func (s *session) together(p pass, q *queue) bool {
	if s.r.stream.Batch == 1 || p > 0 || s.r.presence.careful() {
		return false
	}
	s.mu.Lock()
	first := s.begin(q, s.r.stream.Batch)
	if len(first) == 0 {
		s.mu.Unlock()
		return false
	}
	runs := []run{{q, first}}
	all := slices.Clone(first)
	for more := true; more && len(all) < s.r.stream.Batch; {
		select {
		case other := <-s.ready:
			if begun := s.begin(other, s.r.stream.Batch-len(all)); len(begun) > 0 {
				runs = append(runs, run{other, begun})
				all = append(all, begun...)
			} else {
				s.ready <- other
				more = false
			}
		default:
			more = false
		}
	}
	ctx, cancel := s.unlessLost(all...)
	s.mu.Unlock()
	ignoring, err := s.r.attemptAll(ctx, all)
	cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range runs {
		for _, m := range u.messages {
			m.working, m.single = false, err != nil
			switch {
			case err != nil:
			case ignoring[m]:
				s.settle(m, ignored)
			default:
				s.settle(m, handled)
			}
		}
		if err != nil {
			s.ready <- u.queue
		} else {
			s.next(u.queue, len(u.messages))
		}
	}
	return true
}

// begin takes up to limit messages from the start of a queue that have nothing
// special about them. The lock is held.
func (s *session) begin(q *queue, limit int) []*message {
	n := 0
	for _, m := range q.messages[:min(limit, len(q.messages))] {
		if s.dropLost(m); len(m.deliveries) == 0 || m.bad != nil || m.single || m.counted || m.behind > 0 {
			break
		}
		m.working = true
		n++
	}
	return slices.Clone(q.messages[:n])
}

// pause lets a queue wait. The lock is held.
func (s *session) pause(q *queue, d time.Duration) {
	s.waiting += len(q.messages)
	q.retry = time.AfterFunc(d, func() { s.resume(q) })
	signal(s.freed)
}

// resume ends the wait of a queue.
func (s *session) resume(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.retry = nil
	s.waiting -= len(q.messages)
	s.ready <- q
}

// dropLost forgets the deliveries of m that the broker took back: they come
// again, or have come. The lock is held.
func (s *session) dropLost(m *message) {
	before := len(m.deliveries)
	m.deliveries = slices.DeleteFunc(m.deliveries, func(d broker.Delivery) bool { return lost(d) })
	if n := before - len(m.deliveries); n > 0 {
		s.drop(n, n*len(m.Body))
	}
}

// sweep drops what the broker took back from a queue, the first message among
// it. What remains may be taken back too, and only not be told yet: going on at
// once could put it before what comes again. The lock is held.
func (s *session) sweep(q *queue) {
	key := q.messages[0].key
	q.messages = slices.DeleteFunc(q.messages, func(m *message) bool {
		if s.dropLost(m); len(m.deliveries) > 0 {
			return false
		}
		s.forget(m)
		return true
	})
	if len(q.messages) == 0 {
		delete(s.queues, key)
		return
	}
	s.pause(q, regroup)
}

// settle leaves m to be acknowledged. The lock is held.
func (s *session) settle(m *message, result outcome) {
	s.forget(m)
	s.settled = append(s.settled, m.deliveries...)
	s.floors.settle(m.spots)
	s.r.count(result, int64(len(m.deliveries)))
	if result == handled {
		s.r.evictor.beyond(m.id, m.meta.Time)
	}
	signal(s.acks)
}

func (s *session) forget(m *message) {
	if s.known[m.id] == m {
		delete(s.known, m.id)
	}
}

// next goes on behind the first messages of a queue. The lock is held.
func (s *session) next(q *queue, n int) {
	key := q.messages[0].key
	clear(q.messages[:n])
	q.messages = q.messages[n:]
	if len(q.messages) == 0 {
		delete(s.queues, key)
		return
	}
	s.ready <- q
}

// drop makes room. The lock is held.
func (s *session) drop(deliveries, bytes int) {
	s.held -= deliveries
	s.bytes -= bytes
	s.r.inFlight.Add(-int64(deliveries))
	signal(s.freed)
}

// acknowledge acknowledges what is settled, all there is at a time.
func (s *session) acknowledge(ctx context.Context) {
	for more := true; more; {
		select {
		case <-s.acks:
		case <-s.last:
			more = false
		}
		s.mu.Lock()
		batch := s.settled
		s.settled = nil
		s.mu.Unlock()
		if err := s.ack(ctx, batch); err != nil {
			s.fail(err) // what isn't acknowledged comes again, and is a duplicate
			return
		}
	}
}

func (s *session) ack(ctx context.Context, batch []broker.Delivery) error {
	if len(batch) == 0 {
		return nil
	}
	deliveries, bytes := len(batch), 0
	for _, d := range batch {
		bytes += len(d.Body)
	}
	begin := time.Now()
	for tries := 1; ; tries++ {
		err := s.consumer.Ack(ctx, batch...)
		if err != nil {
			// Nobody can acknowledge what was taken back.
			batch = slices.DeleteFunc(batch, func(d broker.Delivery) bool { return lost(d) })
		}
		if err == nil || len(batch) == 0 {
			break
		}
		if s.intake.Err() != nil {
			return err // too late to be patient
		}
		s.r.brokerDown(err)
		wait := delay(firstReconnect, lastReconnect, tries)
		if time.Since(begin) > patience || !sleep(s.intake, wait) { //nolint:contextcheck // ctx outlives the intake
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(deliveries, bytes)
	return nil
}

// finish ends the lanes. Handlers that run may end, within bounds.
func (s *session) finish(stopped bool) {
	close(s.quit)
	ended := make(chan struct{})
	go func() {
		s.lanes.Wait()
		close(ended)
	}()
	if !stopped {
		defer time.AfterFunc(finishTime, s.abort).Stop()
	}
	select {
	case <-ended:
		return
	case <-s.work.Done():
	}
	if s.r.work.Err() != nil {
		s.r.interrupted.Store(true)
	}
	patience := time.NewTimer(abortTime)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
		s.r.log.Warn("a handler goes on although its context is done; nothing that it saves from now on is committed")
	}
}

// leave gives back what isn't settled and closes the consumer.
func (s *session) leave(ctx context.Context, stopped bool) {
	s.mu.Lock()
	rest := slices.SortedFunc(maps.Values(s.known), func(a, b *message) int { return cmp.Compare(a.order, b.order) })
	var deliveries []broker.Delivery
	for _, m := range rest {
		s.dropLost(m)
		deliveries = append(deliveries, m.deliveries...)
	}
	for _, q := range s.queues {
		if q.retry != nil {
			q.retry.Stop()
		}
	}
	s.r.inFlight.Add(-int64(s.held))
	s.held = 0
	s.mu.Unlock()

	if stopped && len(deliveries) > 0 {
		if err := s.consumer.Release(ctx, deliveries...); err != nil {
			s.r.log.Debug("messages could not be given back; they come again all the same", "error", err)
		}
	}
	if err := s.consumer.Close(ctx); err != nil {
		s.r.log.Debug("the group could not be left properly", "error", err)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
