package faults

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Sales, and what each customer has bought.
type (
	sale struct {
		domain.Root
		bought

		N int // its line
	}
	bought struct {
		Customer string `json:"customer"`
		Date     string `json:"date"`
		Quantity int64  `json:"quantity"`
		Cents    int64  `json:"cents"`
	}
	sold struct {
		bought
	}

	// customer is what version 1 knows of one.
	customer struct {
		Customer string `bun:",pk"`
		Orders   int64
		Quantity int64
		Cents    int64
	}
	// datedCustomer is that of version 2.
	datedCustomer struct {
		Customer string `bun:",pk"`
		Orders   int64
		Quantity int64
		Cents    int64
		Last     string
	}
)

var sellers = domain.MustNew("sales", domain.Aggregate[*sale]("sale", domain.Event[sold](domain.Named("Sold"))))

// customers is a version of the projection.
func customers(version, batch int, each func()) projection.Projection {
	p := projection.Projection{Name: "customers", Version: version, Batch: batch}
	if version == 1 {
		t := projection.NewTable[customer]("customers")
		p.Tables = []projection.Definition{t}
		p.Handlers = []projection.Handler{projection.On(func(ctx context.Context, e sold) error {
			return t.Upsert(ctx, e.Customer, func(c *customer) {
				c.Orders, c.Quantity, c.Cents = c.Orders+1, c.Quantity+e.Quantity, c.Cents+e.Cents
			})
		})}
		return p
	}
	t := projection.NewTable[datedCustomer]("customers")
	p.Tables = []projection.Definition{t}
	p.Handlers = []projection.Handler{projection.On(func(ctx context.Context, e sold) error {
		each()
		return t.Upsert(ctx, e.Customer, func(c *datedCustomer) {
			c.Orders, c.Quantity, c.Cents, c.Last = c.Orders+1, c.Quantity+e.Quantity, c.Cents+e.Cents, max(c.Last, e.Date)
		})
	})}
	return p
}

// sales are placed in the order of a file.
type sales struct {
	units *uow.Manager
	all   *repository.Repository[*sale]
	lines []bought
}

func newSales(p uow.Provider, file string) (*sales, error) {
	units, err := uow.New(uow.Config{Domain: sellers, Providers: []uow.Provider{p}, History: true})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &sales{units: units, all: repository.New[*sale](units)}
	lines := bufio.NewScanner(f)
	lines.Scan() // what the columns are called
	for lines.Scan() {
		of := strings.Split(lines.Text(), ",")
		quantity, noQuantity := strconv.ParseInt(of[2], 10, 64)
		cents, noCents := strconv.ParseInt(of[3], 10, 64)
		if err := cmp.Or(noQuantity, noCents); err != nil {
			return nil, err
		}
		s.lines = append(s.lines, bought{of[0], of[1], quantity, cents})
	}
	return s, lines.Err()
}

// place sells some lines, a number of them in each unit of work.
func (s *sales) place(ctx context.Context, from, to, atOnce int, between func()) error {
	for ; from < to; from += atOnce {
		err := s.units.Do(ctx, func(ctx context.Context) error {
			for n := from; n < min(to, from+atOnce); n++ {
				of := s.lines[n]
				a := &sale{Root: domain.RootWithID(fmt.Sprint("s", n)), bought: of, N: n}
				a.Raise(sold{of})
				if err := s.all.Save(ctx, a); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		between()
	}
	return nil
}

// placed is the first line of a range that isn't sold yet.
func (s *sales) placed(ctx context.Context, from, to int) (next int, err error) {
	err = s.units.Providers()[0].Reader().NewRaw("SELECT coalesce(max((state ->> 'N')::int) + 1, ?0) FROM documents"+
		" WHERE category = 'sales::sale' AND (state ->> 'N')::int >= ?0 AND (state ->> 'N')::int < ?1", from, to).Scan(ctx, &next)
	return next, err
}

const salesAtOnce = 20

// sales is a node that sells, and has a version of the projection.
func (n *node) sales(ctx context.Context, p uow.Provider) error {
	s, err := newSales(p, n.cfg.Orders)
	if err != nil {
		return err
	}
	var handled atomic.Int64
	made := customers(n.cfg.Version, n.cfg.Outbox.BatchSize, func() {
		if handled.Add(1) == n.cfg.Trap.KillFrom {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	return n.host(ctx, []engine.Context{{Units: s.units, Projections: []projection.Projection{made}}}, func(ctx context.Context) error {
		from, err := s.placed(ctx, n.cfg.From, n.cfg.To)
		if err != nil {
			return err
		}
		if err := s.place(ctx, from, n.cfg.To, salesAtOnce, func() {
			select { // the pace of customers
			case <-time.After(n.cfg.Pause):
			case <-ctx.Done():
			}
		}); err != nil {
			return err
		}
		n.say("placed")
		return nil
	})
}

// ordersFile has real orders where WAYBILL_ORDERS names a file of them, with the columns
// customer, date, quantity and amount_cents; else made ones.
func ordersFile(t *testing.T) (file string, lines int) {
	t.Helper()
	if file = os.Getenv("WAYBILL_ORDERS"); file != "" {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return file, strings.Count(strings.TrimSpace(string(text)), "\n")
	}
	lines = 4000
	if long() {
		lines = 70_000
	}
	var text strings.Builder
	text.WriteString("customer,date,quantity,amount_cents\n")
	for n := range lines {
		fmt.Fprintf(&text, "%05d,1997-%02d-%02d,%d,%d\n", n*7%(lines/3), 1+n*12/lines, 1+n%28, 1+n%5, 100+n*37%9000)
	}
	file = t.TempDir() + "/orders.csv"
	require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
	return file, lines
}

// N5: a new version of a projection is built beside the one in use, while programs of both
// sell; it is killed in the middle, goes on, and takes the place of the old one. Both
// tables are in the end what SQL counts.
// Conformance: C-94, N5.
func TestProjections_RebuiltWhileOthersWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	file, number := ordersFile(t)
	p := w.units.Providers()[0]
	s, err := newSales(p, file)
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), s.units))
	w.createTopic("sales.sale", 1<<20)
	first, middle := number*8/10, number*9/10
	require.NoError(t, s.place(t.Context(), 0, first, 500, func() {}))

	node := func(version, from, to, killFrom int) *process {
		return w.run(fmt.Sprint("version-", version), w.config(func(c *nodeConfig) {
			c.Role, c.Version, c.Orders, c.From, c.To, c.Pause = "sales", version, file, from, to, 50*time.Millisecond
			c.Outbox, c.Trap.KillFrom = outbox.Config{BatchSize: min(500, number/40)}, int64(killFrom)
		}))
	}
	build := func(version int) (projection.Progress, bool) {
		all, err := projection.List(t.Context(), p)
		require.NoError(t, err)
		i := slices.IndexFunc(all, func(b projection.Progress) bool { return b.Name == "customers" && b.Version == version })
		if i < 0 {
			return projection.Progress{}, false
		}
		return all[i], true
	}
	began := time.Now()
	older := node(1, first, middle, 0)
	eventually(t, func() bool { b, ok := build(1); return ok && b.Events >= int64(first) }, "version 1 has caught up")
	t.Logf("version 1: %d events in %v, with its start", first, time.Since(began).Round(time.Millisecond))

	// It dies by itself: whoever watches it may look too late.
	newer := node(2, middle, number, first/3)
	newer.wait()
	atKill, _ := build(2)
	require.Equal(t, "building", atKill.Status)
	require.Less(t, atKill.Events, int64(number))
	live, _ := build(1)
	require.Equal(t, "live", live.Status)

	newer, began = node(2, middle, number, 0), time.Now()
	var told []eta
	eventually(t, func() bool {
		b, _ := build(2)
		if b.Status == "building" && b.ETA > 0 {
			told = append(told, eta{time.Now(), b.ETA})
		}
		return b.Status == "live"
	}, "version 2 takes the place of version 1")
	t.Logf("version 2: killed after %d events, took over and changed over after %v with its start; ETA off by %s", atKill.Events, time.Since(began).Round(time.Millisecond), off(told))
	older.until("placed", 1)
	newer.until("placed", 1)
	for _, version := range []int{1, 2} {
		eventually(t, func() bool { b, _ := build(version); return !b.Behind && b.Events >= int64(number) }, "version %d has everything", version)
		b, _ := build(version)
		require.EqualValues(t, number, b.Events, "each once")
	}

	const columns = "customer || ' ' || orders || ' ' || quantity || ' ' || cents"
	counted := w.strings("SELECT " + columns + " FROM (SELECT state ->> 'customer' AS customer, count(*) AS orders, sum((state ->> 'quantity')::bigint) AS quantity," +
		" sum((state ->> 'cents')::bigint) AS cents FROM documents WHERE category = 'sales::sale' GROUP BY 1) AS c ORDER BY customer")
	old, _ := build(1)
	for _, table := range []string{"customers", fmt.Sprint("customers__", old.Build)} {
		require.Equal(t, counted, w.strings("SELECT "+columns+" FROM "+table+" ORDER BY customer"), table)
	}
	require.Equal(t, w.strings("SELECT max(state ->> 'date') FROM documents WHERE category = 'sales::sale' GROUP BY state ->> 'customer' ORDER BY state ->> 'customer'"),
		w.strings("SELECT last FROM customers ORDER BY customer"))
	require.Equal(t, number, w.count("documents WHERE category = 'sales::sale'"))
	older.terminate()
	newer.terminate()
}

// eta is what was told, and when.
type eta struct {
	at time.Time
	in time.Duration
}

// off is by how much what was told in the middle was wrong.
func off(told []eta) string {
	if len(told) == 0 {
		return "nothing: none was told"
	}
	end, middle := time.Now(), told[len(told)/2]
	took := end.Sub(middle.at)
	return fmt.Sprintf("%v of %v", (middle.in - took).Round(time.Millisecond), took.Round(time.Millisecond))
}
