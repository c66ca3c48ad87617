package projection

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill/uow"
)

// Fast makes a context's projections as quick as tests need them.
func Fast(ps *Projections) {
	ps.wait = waits{
		look: 50 * time.Millisecond, soon: 20 * time.Millisecond, lease: 2 * time.Second, renew: 300 * time.Millisecond,
		poll: 20 * time.Millisecond, retry: 20 * time.Millisecond, held: 100 * time.Millisecond,
	}
}

// Slow makes leases short, and their owners too slow to renew them.
func Slow(ps *Projections) { ps.wait.lease, ps.wait.renew = 50*time.Millisecond, time.Hour }

// Hand is a shard of a build in the hands of a test.
type Hand struct{ w *worker }

// Take takes the lease of the last build of a projection's version.
func Take(ctx context.Context, ps *Projections, n int) (*Hand, bool, error) {
	p := ps.all[n]
	r := ps.Runner(p.current().Provider, nil)
	r.ctx = ctx
	builds, err := r.builds(ctx)
	if err != nil {
		return nil, false, err
	}
	b := newest(of(builds, p.name()), p.current().Version)
	l, position, _, ok, err := take(ctx, r.provider, p.name(), b.build, 0, r.owner, "", r.wait.lease)
	return &Hand{&worker{r: r, log: r.log, program: p.current(), lease: l, shards: 1, stop: make(chan struct{}), shard: shard{position: position}}}, ok, err
}

// Build is its number.
func (h *Hand) Build() int { return h.w.lease.build }

// Read reads what is behind its position.
func (h *Hand) Read(ctx context.Context) (n int, commit func() error) {
	h.w.open()
	p := h.w.read(ctx, h.w.shard.position)
	return len(p.events), func() error {
		if p.err != nil {
			return p.err
		}
		return h.w.apply(ctx, p)
	}
}

// Failed finds out where it stands after an error.
func (h *Hand) Failed(ctx context.Context, err error) error { return h.w.failed(ctx, err) }

// ChangeOver makes a build the live one, as a process that runs it would.
func ChangeOver(ctx context.Context, ps *Projections, n, number int) error {
	p := ps.all[n].current()
	return change(ctx, p.provider, p.Name, number, false, func(live, to *build) error {
		if !changesOver(p, live, to) {
			return errNot
		}
		return nil
	})
}

// CaughtUp notes that builds are ready.
func CaughtUp(ctx context.Context, ps *Projections, n int) error {
	note, err := CatchUp(ctx, ps, n)
	if err == nil {
		err = note()
	}
	return err
}

// CatchUp looks which builds are ready, and returns what notes it.
func CatchUp(ctx context.Context, ps *Projections, n int) (note func() error, err error) {
	r := ps.Runner(ps.all[n].current().Provider, nil)
	builds, err := r.builds(ctx)
	return func() (err error) {
		for _, b := range builds {
			err = errors.Join(err, r.caughtUp(ctx, b))
		}
		return err
	}, err
}

// Clean removes what is over, as a runner does.
func Clean(ctx context.Context, ps *Projections, n int) error {
	p := ps.all[n]
	r := ps.Runner(p.current().Provider, nil)
	builds, err := load(ctx, r.provider.Reader(), []string{p.name()})
	if err != nil {
		return err
	}
	return r.clean(ctx, p, builds)
}

// Errors that tests look for.
var (
	ErrFenced = errFenced
	ErrMoved  = errMoved
	ErrNot    = errNot
)

// Physical is a table's name.
func Physical(name string, build int) string { return physical(name, build) }

// Position is how far a build is.
func Position(ctx context.Context, p uow.Provider, name string, build int) (int64, error) {
	builds, err := load(ctx, p.Reader(), []string{name})
	for _, b := range builds {
		if b.build == build {
			return b.lowest(), err
		}
	}
	return 0, err
}
