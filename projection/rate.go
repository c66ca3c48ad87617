package projection

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/historydb"
)

// measure takes a sample.
func (w *worker) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.r.wait.lease)
	defer cancel()
	head, err := historydb.Head(ctx, w.r.provider.Reader())
	if err != nil { // The renewal will say so.
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shard.perSecond, w.shard.closing = w.rate.sample(time.Now(), w.shard.position, head)
}

// rate is how fast a shard goes, by the last minute.
type rate struct {
	events  int64
	samples []sample
}

type sample struct {
	at       time.Time
	events   int64
	position int64
	head     int64
}

func (r *rate) add(events int) { r.events += int64(events) }

// sample returns events per second, and by how many positions per second the head comes
// closer.
func (r *rate) sample(at time.Time, position, head int64) (perSecond, closing float64) {
	if position == beginning { // How far that is from the head isn't known.
		return 0, 0
	}
	s := sample{at, r.events, position, head}
	r.samples = append(r.samples, s)
	for len(r.samples) > 2 && at.Sub(r.samples[0].at) > time.Minute {
		r.samples = r.samples[1:]
	}
	first := r.samples[0]
	seconds := s.at.Sub(first.at).Seconds()
	if seconds <= 0 {
		return 0, 0
	}
	perSecond = float64(s.events-first.events) / seconds
	closing = (float64(first.head-first.position) - float64(s.head-s.position)) / seconds
	return perSecond, closing
}
