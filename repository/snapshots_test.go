package repository_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Meter is kept as its events, with snapshots.
type Meter struct {
	domain.Root
	Sum   int
	Reads int
	Seen  int `json:"-"` // How many events were applied to this instance.
}

type MeterRead struct{ N int }

func (m *Meter) Apply(event any) {
	m.Sum += event.(MeterRead).N
	m.Reads++
	m.Seen++
}

var (
	metering = domain.MustNew("shop", domain.Aggregate[*Meter]("meter", domain.Event[MeterRead]()))
	// meteringNext has another form of snapshots.
	meteringNext = domain.MustNew("shop", domain.Aggregate[*Meter]("meter", domain.Event[MeterRead](), domain.StateVersion(2)))
)

func (db testDB) meters(t *testing.T, d *domain.Domain, opts ...repository.Option) *repository.Repository[*Meter] {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: d, Providers: []uow.Provider{db.provider}})
	require.NoError(t, err)
	return repository.EventSourced[*Meter](units, opts...)
}

func (db testDB) snapshots(t *testing.T, id string) (versions []string) {
	t.Helper()
	require.NoError(t, db.provider.Reader().NewRaw("SELECT version || '/' || state_version FROM snapshots WHERE category = 'shop::meter' AND id = ? ORDER BY version", id).Scan(t.Context(), &versions))
	return versions
}

// metersDo runs fn in a unit of a repository of meters.
func metersDo(t *testing.T, meters *repository.Repository[*Meter], fn func(ctx context.Context) error) error {
	t.Helper()
	return repository.Units(meters).Do(t.Context(), fn)
}

// savedMeter saves a meter that many times.
func savedMeter(t *testing.T, meters *repository.Repository[*Meter], id string, times int) *Meter {
	t.Helper()
	m := &Meter{Root: domain.RootWithID(id)}
	for range times {
		domain.Record(m, MeterRead{N: 1})
		domain.Record(m, MeterRead{N: 2})
		require.NoError(t, meters.Save(t.Context(), m))
	}
	return m
}

func TestSnapshots_AreWhereLoadingBegins(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		meters, plain := db.meters(t, metering, repository.Snapshots(3)), db.meters(t, metering)
		ctx := t.Context()
		savedMeter(t, meters, "it's ? one", 11)
		savedMeter(t, meters, "two", 2)
		require.Equal(t, []string{"6/1", "9/1"}, db.snapshots(t, "it's ? one"), "the newest two")
		require.Empty(t, db.snapshots(t, "two"))
		all, err := meters.GetMany(ctx, "it's ? one", "two")
		require.NoError(t, err)
		require.Equal(t, []int{33, 6}, []int{all[0].Sum, all[1].Sum})
		require.Equal(t, []int{22, 4}, []int{all[0].Reads, all[1].Reads})
		require.Equal(t, []int{4, 4}, []int{all[0].Seen, all[1].Seen}, "events that were read")
		require.Equal(t, []int64{11, 2}, []int64{all[0].Version(), all[1].Version()})
		m, err := plain.Get(ctx, "it's ? one")
		require.NoError(t, err)
		require.Equal(t, []int{33, 22}, []int{m.Sum, m.Seen})

		// All may be deleted, none has to be readable.
		db.exec(t, "UPDATE snapshots SET state = '{\"Lost\": 1}' WHERE version = 9")
		for range 2 {
			m, err := meters.Get(ctx, "it's ? one")
			require.NoError(t, err)
			require.Equal(t, 33, m.Sum)
			require.Equal(t, 22, m.Seen)
			db.exec(t, "DELETE FROM snapshots")
		}
	})
}

// One of another version is passed over, in both directions.
func TestSnapshots_OfAnotherStateVersionArePassedOver(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		meters, next := db.meters(t, metering, repository.Snapshots(2)), db.meters(t, meteringNext, repository.Snapshots(2))
		savedMeter(t, meters, "m", 4)
		m, err := next.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{12, 8}, []int{m.Sum, m.Seen})
		require.NoError(t, next.Update(t.Context(), "m", func(m *Meter) error { domain.Record(m, MeterRead{}); return nil }))
		require.NoError(t, next.Update(t.Context(), "m", func(m *Meter) error { domain.Record(m, MeterRead{}); return nil }))
		require.Equal(t, []string{"4/1", "6/2"}, db.snapshots(t, "m"))
		m, err = meters.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{12, 2}, []int{m.Sum, m.Seen})
		m, err = next.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{12, 0}, []int{m.Sum, m.Seen})
	})
}

// maxMeter is a Meter of the build that knows another field, without another StateVersion.
type maxMeter struct {
	domain.Root
	Sum   int
	Reads int
	Max   int
}

func (m *maxMeter) Apply(event any) {
	n := event.(MeterRead).N
	m.Sum += n
	m.Reads++
	m.Max = max(m.Max, n)
}

var meteringMax = domain.MustNew("shop", domain.Aggregate[*maxMeter]("meter", domain.Event[MeterRead]()))

// Who adds a field and forgets the version has it of all events, and not only of those since
// the last snapshot; and what the build of before stores beside it counts for nothing.
func TestSnapshots_OfATypeWithoutAFieldArePassedOver(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		before := db.meters(t, metering, repository.Snapshots(2))
		units, err := uow.New(uow.Config{Domain: meteringMax, Providers: []uow.Provider{db.provider}})
		require.NoError(t, err)
		after := repository.EventSourced[*maxMeter](units, repository.Snapshots(2))
		savedMeter(t, before, "m", 4)
		m, err := after.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{12, 2}, []int{m.Sum, m.Max})

		for range 2 {
			require.NoError(t, after.Update(t.Context(), "m", func(m *maxMeter) error { domain.Record(m, MeterRead{N: 1}); return nil }))
		}
		m, err = after.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{14, 2}, []int{m.Sum, m.Max})

		for range 2 { // It is taken back, and comes again.
			require.NoError(t, before.Update(t.Context(), "m", func(m *Meter) error { domain.Record(m, MeterRead{N: 1}); return nil }))
		}
		m, err = after.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{16, 2}, []int{m.Sum, m.Max})
	})
}

// A removed aggregate stays so, and one that is created again begins anew.
func TestSnapshots_OfAnEarlierLifeCountForNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		meters := db.meters(t, metering, repository.Snapshots(2))
		m := savedMeter(t, meters, "m", 3)
		require.NoError(t, meters.Remove(t.Context(), m)) // version 4
		_, err := meters.Get(t.Context(), "m")
		require.ErrorAs(t, err, new(*repository.NotFoundError))
		require.Equal(t, []string{"2/1"}, db.snapshots(t, "m"))
		require.NoError(t, metersDo(t, meters, func(ctx context.Context) error {
			_, err := meters.Get(ctx, "m")
			require.ErrorAs(t, err, new(*repository.NotFoundError))
			m := &Meter{Root: domain.RootWithID("m")}
			domain.Record(m, MeterRead{N: 5})
			return meters.Save(ctx, m)
		}))
		m, err = meters.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, []int{5, 5, 1}, []int{int(m.Version()), m.Sum, m.Reads})
	})
}

func TestSnapshots_RefusesWhatTheyWouldLose(t *testing.T) {
	t.Parallel()
	db := openSQLite(t, "default")
	require.PanicsWithError(t, "repository.EventSourced: repository.Snapshots(0): say with how many versions one is made, 100 for instance", func() {
		db.meters(t, metering, repository.Snapshots(0))
	})
	require.PanicsWithError(t, "repository.New: repository.Snapshots is for aggregates that are kept as their events: take it out", func() {
		repository.New[*Tally](db.units, repository.Snapshots(1))
	})
	for name, construct := range map[string]func(){
		"New":          func() { repository.New[*Ledger](db.units, repository.In("default"), nil) },
		"EventSourced": func() { repository.EventSourced[*Ledger](db.units, repository.In("default"), nil) },
	} {
		require.PanicsWithError(t, "repository."+name+": option 2 is nil: take it out", construct)
	}
	require.Panics(t, func() { repository.EventSourced[*Ledger](db.units, repository.Snapshots(1)) }, "it has fields that aren't exported")
}

// An aggregate as it was is for reading.
func TestAsOf_IsWhatItWasAndCannotBeSaved(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		for name, opts := range map[string][]repository.Option{"events": nil, "snapshots": {repository.Snapshots(2)}} {
			ctx, meters := t.Context(), db.meters(t, metering, opts...)
			m := savedMeter(t, meters, name, 5)
			require.NoError(t, meters.Remove(ctx, m)) // version 6
			for version := int64(1); version <= 5; version++ {
				// Each version an hour after the one before, and the second of its events a minute later.
				at := time.Date(2026, 1, 2, int(version), 0, 0, 0, time.UTC)
				for n, at := range []time.Time{at, at.Add(time.Minute)} {
					db.exec(t, "UPDATE events SET occurred_at = ? WHERE id = ? AND version = ? AND n = ?", at.Format("2006-01-02T15:04:05.000Z"), name, version, n+1)
				}
			}
			for version := int64(1); version <= 5; version++ {
				was, err := meters.AsOfVersion(ctx, name, version)
				require.NoError(t, err)
				require.Equal(t, []int64{version, 3 * version}, []int64{was.Version(), int64(was.Sum)})
				at := time.Date(2026, 1, 2, int(version), 1, 0, 0, time.UTC)
				was, err = meters.AsOf(ctx, name, at)
				require.NoError(t, err)
				require.Equal(t, version, was.Version())
				was, err = meters.AsOf(ctx, name, at.Add(59*time.Minute))
				require.NoError(t, err)
				require.Equal(t, version, was.Version(), "the next one is there in part only")
			}
			for _, missing := range []func() (*Meter, error){
				func() (*Meter, error) { return meters.AsOfVersion(ctx, name, 0) },
				func() (*Meter, error) { return meters.AsOfVersion(ctx, name, 6) },
				func() (*Meter, error) { return meters.AsOfVersion(ctx, "other", 1) },
				func() (*Meter, error) { return meters.AsOfVersion(ctx, "\x00", 1) },
				func() (*Meter, error) { return meters.AsOf(ctx, name, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)) },
				func() (*Meter, error) { return meters.AsOf(ctx, name, time.Now().Add(time.Hour)) },
			} {
				_, err := missing()
				require.ErrorAs(t, err, new(*repository.NotFoundError))
			}
			was, err := meters.AsOfVersion(ctx, name, 3)
			require.NoError(t, err)
			past := &uow.PastError{Type: "meter", ID: name, Version: 3}
			require.Equal(t, past, meters.Save(ctx, was))
			domain.Record(was, MeterRead{N: 1})
			require.Equal(t, past, meters.Save(ctx, was))
			require.Equal(t, past, meters.Remove(ctx, was))
			require.ErrorContains(t, past, `was loaded as of version 3, for reading: Get it to change it`)
		}
		_, err := repository.New[*Tally](db.units).AsOfVersion(t.Context(), "a", 1)
		require.ErrorContains(t, err, "shop::tally is not kept as its events")
	})
}

// In a unit of work it is an instance of its own.
func TestAsOf_IsBesideTheOneThatAUnitHolds(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		meters := db.meters(t, metering)
		savedMeter(t, meters, "m", 2)
		require.NoError(t, metersDo(t, meters, func(ctx context.Context) error {
			now, err := meters.Get(ctx, "m")
			require.NoError(t, err)
			was, err := meters.AsOfVersion(ctx, "m", 1)
			require.NoError(t, err)
			require.Equal(t, []int{6, 3}, []int{now.Sum, was.Sum})
			domain.Record(now, MeterRead{N: 1})
			return meters.Save(ctx, now)
		}))
		m, err := meters.Get(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, 7, m.Sum)
	})
}

// S2-40: what happened, in order, through the upcasters, whichever way it is kept.
func TestPast_IsWhatHappened(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c"})
		db.keepsHistory(t)
		units := newUnits(t, uow.Config{Providers: []uow.Provider{db.provider}, History: true})
		past := func(all func(yield func(repository.Happened, error) bool)) (texts []string) {
			for h, err := range all {
				if err != nil {
					return append(texts, err.Error())
				}
				require.Equal(t, "c", h.CorrelationID)
				texts = append(texts, fmt.Sprintf("%s %T%v", h.Sequence, h.Event, h.Event))
			}
			return texts
		}
		tallies, ledgers := repository.New[*Tally](units), repository.EventSourced[*Ledger](db.units)
		tally, ledger := newTally("a"), newLedger("a")
		for i := range 3 {
			tally.Add(i)
			ledger.Add(i)
			ledger.SetLabel(fmt.Sprint("l", i))
			require.NoError(t, tallies.Save(ctx, tally))
			require.NoError(t, ledgers.Save(ctx, ledger))
		}
		require.Equal(t, []string{"2.1 repository_test.TallyAdded{1}", "3.1 repository_test.TallyAdded{2}"}, past(tallies.Past(ctx, "a", 1)))
		all := past(ledgers.Past(ctx, "a", 0))
		require.Len(t, all, 6)
		require.Equal(t, "3.2 repository_test.LedgerLabelled{l2}", all[5])
		require.Equal(t, all[2:], past(ledgers.Past(ctx, "a", 1)))
		require.Empty(t, past(tallies.Past(ctx, "b", 0)))
		require.Empty(t, past(tallies.Past(ctx, "\x00", 0)))
		require.Equal(t, []string{"repository: the past of shop::tally is not kept: set uow.Config.History, or make its repository with repository.EventSourced"},
			past(repository.New[*Tally](db.units).Past(ctx, "a", 0)))
		db.exec(t, "UPDATE events SET type = 'Shop.LedgerAdded.v7' WHERE id = 'a' AND version = 2 AND n = 1")
		require.ErrorContains(t, fmt.Errorf("%s", past(ledgers.Past(ctx, "a", 1))[0]), "Shop.LedgerAdded.v7 in version 2 of shop::ledger a can't be read")
	})
}
