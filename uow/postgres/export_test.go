package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/uow"
)

// Pool is a provider's pool.
func Pool(p uow.Provider) *pgxpool.Pool { return p.(*provider).pool }

// TakeKeeper has the connection that keeps leases be in use until it is given back.
func TakeKeeper(p uow.Provider) (giveBack func()) {
	k := &p.(*provider).server.keeper
	conn := <-k.free
	return func() { k.free <- conn }
}

// UnitsWaiting is how many units of work wait for a connection.
func UnitsWaiting(p uow.Provider) int {
	n := 0
	for _, s := range []*seats{&p.(*provider).units.every, &p.(*provider).units.handlers} {
		s.mu.Lock()
		n += s.waiting
		s.mu.Unlock()
	}
	return n
}

// Texts is how many queries a provider remembers.
func Texts(p uow.Provider) int { return len(p.(*provider).texts.all) }

// EndPause lets the time pass in which nothing is prepared.
func EndPause(p uow.Provider) { p.(*provider).pause.until.Store(&time.Time{}) }

// ConnectTimeout is how long cfg's connections may take to come.
func ConnectTimeout(cfg Config) (time.Duration, error) {
	pc, _, err := cfg.parse()
	if err != nil {
		return 0, err
	}
	return pc.ConnConfig.ConnectTimeout, nil
}

// IdleGrace is for how long a handler's transaction may be idle beyond the handler's time.
const IdleGrace = idleGrace
