package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// watchEvery is how soon a commit of another process is noticed.
const watchEvery = 100 * time.Millisecond

// Signal does nothing: every commit changes the file's data version.
func (p *provider) Signal([]outbox.Poke) {}

// Watch hears of every commit to the file that another connection made, also one
// of this process. It reads a number in the file's header and takes no lock that
// a writer would wait for.
func (p *provider) Watch(ctx context.Context, hear func(pokes []outbox.Poke)) error {
	conn, err := p.reader.Conn(ctx)
	if err != nil {
		return fmt.Errorf("sqlite: provider %q can't watch the file: %w", p.name, err)
	}
	defer func() { _ = conn.Close() }()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := int64(-1); ; {
		var version int64
		if err := conn.QueryRowContext(ctx, "PRAGMA data_version").Scan(&version); err != nil {
			return fmt.Errorf("sqlite: provider %q doesn't watch the file any more: %w", p.name, err)
		}
		if version != last {
			last = version
			hear(nil)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
