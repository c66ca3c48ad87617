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
	over  chan struct{} // More waits than should.

	mu      sync.Mutex
	order   int64
	known   map[string]*message // Not settled, by id; the latest of those with the same.
	queues  map[string]*queue   // By key.
	settled []broker.Delivery   // To be acknowledged.
	held    int                 // Deliveries, until they are acknowledged or lost.
	bytes   int                 // Their bodies.
	waiting int                 // Messages whose queue waits for a retry.
	idle    int                 // Their bodies.
	crowd   crowd
	floors  floors
}

// queue is the messages of one key, in order, at least one.
type queue struct {
	messages []*message
	retry    *time.Timer // Not nil while the queue waits.
	due      time.Time   // When that ends.
	storable bool        // It waits because of its first message, which the database may keep meanwhile.
}

func (q *queue) bytes() (n int) {
	for _, m := range q.messages {
		n += len(m.Body)
	}
	return n
}

// stand notes that the messages behind the first, which is behind so many others of
// their key, have to stand behind it in the table.
func (q *queue) stand(behind int) {
	for _, m := range q.messages[1:] {
		m.behind = behind + 1
	}
}

// serve works until the consumer fails or the intake ends, and leaves the group.
func (r *Runner) serve(consumer broker.Consumer) error {
	s := &session{
		r: r, consumer: consumer,
		quit: make(chan struct{}), last: make(chan struct{}),
		ready: make(chan *queue, maxHeld), acks: make(chan struct{}, 1), freed: make(chan struct{}, 1), over: make(chan struct{}, 1),
		known: map[string]*message{}, queues: map[string]*queue{},
		floors: floors{marks: r.evictor.marks, open: map[string]*list.List{}, trusted: r.stream.Inbound.Trust.kind == trusted},
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
	s.lanes.Go(s.postpone)
	r.session.Store(s)
	defer r.session.Store(nil)
	r.standing.join(consumer)
	r.running.Store(true)
	well := time.AfterFunc(steady, r.brokerUp)
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(s.intake) })
	err := s.take(s.intake)
	well.Stop()
	r.running.Store(false)
	if r.intake.Err() != nil {
		r.standing.leave(nil) // as it was told to
	} else {
		r.standing.leave(err)
	}
	s.fail(err)
	watching.Wait()

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
		deliveries, err := s.receive(ctx, limit)
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
		arrived[i] = s.r.arrivals.read(d)
		s.r.assign(arrived[i])
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
	s.r.knew(ctx, s.enqueue(fresh, records))
	return nil
}

// enqueue returns those that the inbox knows.
func (s *session) enqueue(fresh []*message, records map[*message]record) (known []*message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range fresh {
		m.record = records[m]
		m.counted = m.counted || m.attempts > 0
		if m.done {
			s.settle(m, duplicate)
			known = append(known, m)
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
			s.wait(1, len(m.Body))
		}
	}
	return known
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
		err := s.tellBroker(ctx, "acknowledging", s.consumer.Ack, batch...)
		if err != nil {
			// Nobody can acknowledge what was taken back. A call that was given up may still
			// read the batch that it had.
			batch = slices.DeleteFunc(slices.Clone(batch), func(d broker.Delivery) bool { return lost(d) })
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
	if !within(ended, abortTime) {
		s.r.leave(s.working())
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
		if err := s.tellBroker(ctx, "giving back", s.consumer.Release, deliveries...); err != nil {
			s.r.log.Debug("messages could not be given back; they come again all the same", "error", err)
		}
	}
	leave := func(ctx context.Context, _ ...broker.Delivery) error { return s.consumer.Close(ctx) }
	if err := s.tellBroker(ctx, "leaving the group", leave); err != nil {
		s.r.log.Debug("the group could not be left properly", "error", err)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
