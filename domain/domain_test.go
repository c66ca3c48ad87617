package domain_test

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

type (
	Invoice struct{ domain.Root }

	InvoiceSent struct{ InvoiceID string }

	// StockReserved is shipping's and this context's idea of an event of inventory.
	StockReserved struct {
		OrderID string `json:"order_id"`
		Amount  int    `json:"amount"`
	}

	CancelledV1 struct{ Why string }
	CancelledV2 struct{ Why, Who string }
)

func cancelledV1(old CancelledV1) CancelledV2 { return CancelledV2{Why: old.Why, Who: "nobody"} }

func cancelledV2(old CancelledV2) OrderCancelled {
	return OrderCancelled{Reason: old.Why, By: old.Who}
}

func reservedV1(old map[string]any) StockReserved {
	return StockReserved{OrderID: old["order"].(string), Amount: 1}
}

func newOrdering(t *testing.T) *domain.Domain {
	d, err := domain.New("order-book",
		domain.Aggregate[*Order]("order",
			domain.Event[OrderPlaced](domain.Published(), domain.Alias("OrderBook.OrderMade"), domain.Alias("Sales.Placed")),
			domain.Event[OrderCancelled](domain.Upcast(2, cancelledV2), domain.Version(3), domain.Upcast(1, cancelledV1)),
			domain.Event[NoteAdded](domain.Named("Remark")),
		),
		domain.Aggregate[*Invoice]("invoice_2", domain.Event[InvoiceSent](domain.Published())),
		domain.Foreign[StockReserved]("Inventory.StockReserved.v3", domain.Upcast(2, reservedV1), domain.Alias("Stock.Reserved")),
	)
	require.NoError(t, err)
	return d
}

// S4-18: these names are stored, and read by others. A change here is a change
// of the contract: it needs an alias or an upcaster.
// Conformance: U-16.
func TestNames_S418_Golden(t *testing.T) {
	d := newOrdering(t)
	var b strings.Builder
	for _, a := range d.Aggregates() {
		b.WriteString("aggregate " + a.Name + " " + a.Category + "\n")
	}
	for _, e := range d.Events() {
		b.WriteString("event " + e.WireName() + " " + e.ShortName() + " " + e.Category)
		if e.Published {
			b.WriteString(" published")
		}
		if e.Foreign {
			b.WriteString(" foreign")
		}
		b.WriteString("\n")
	}
	want, err := os.ReadFile("testdata/names.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}

// S4-18: a row that was stored under the name of a type that was since renamed
// and moved is read, by its pinned name and by an alias.
// Conformance: U-16.
func TestDecode_S418_SurvivesARename(t *testing.T) {
	type Renamed struct {
		OrderID string `json:"order_id"`
	}
	before := newOrdering(t)
	_, data, err := before.Encode(OrderPlaced{OrderID: "o1"})
	require.NoError(t, err)

	for _, option := range []domain.EventOption{domain.Named("OrderPlaced"), domain.Alias("OrderBook.OrderPlaced")} {
		after, err := domain.New("order-book", domain.Aggregate[*Order]("order", domain.Event[Renamed](option)))
		require.NoError(t, err)
		event, err := after.Decode("OrderBook.OrderPlaced.v1", data)
		require.NoError(t, err)
		require.Equal(t, Renamed{OrderID: "o1"}, event)
	}
}

func TestEncodeDecode_RoundTrip(t *testing.T) {
	d := newOrdering(t)
	for _, event := range []any{OrderPlaced{OrderID: "o\u2028<1>"}, OrderCancelled{Reason: "r", By: "b"}, NoteAdded{}} {
		typ, data, err := d.Encode(event)
		require.NoError(t, err)
		decoded, err := d.Decode(typ.WireName(), data)
		require.NoError(t, err)
		require.Equal(t, event, decoded)
		same, err := d.EventNamed(typ.WireName())
		require.NoError(t, err)
		require.Same(t, typ, same)
	}
}

func TestDecode_OldVersionsThroughUpcasters(t *testing.T) {
	d := newOrdering(t)
	for name, c := range map[string]struct {
		data string
		want any
	}{
		"OrderBook.OrderCancelled.v1": {`{"Why":"late"}`, OrderCancelled{Reason: "late", By: "nobody"}},
		"OrderBook.OrderCancelled.v2": {`{"Why":"late","Who":"me"}`, OrderCancelled{Reason: "late", By: "me"}},
		"OrderBook.OrderCancelled.v3": {`{"Reason":"late","By":"you","New":1}`, OrderCancelled{Reason: "late", By: "you"}},
		"OrderBook.OrderMade.v1":      {`{"order_id":"1"}`, OrderPlaced{OrderID: "1"}},
		"Sales.Placed.v1":             {`{"order_id":"1"}`, OrderPlaced{OrderID: "1"}},
		"Inventory.StockReserved.v3":  {`{"order_id":"1","amount":2,"internal":true}`, StockReserved{OrderID: "1", Amount: 2}},
		"Inventory.StockReserved.v2":  {`{"order":"1"}`, StockReserved{OrderID: "1", Amount: 1}},
		"Stock.Reserved.v2":           {`{"order":"1"}`, StockReserved{OrderID: "1", Amount: 1}},
	} {
		got, err := d.Decode(name, []byte(c.data))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestDecode_NamesThatItCannotRead(t *testing.T) {
	d := newOrdering(t)
	unknown := func(name string) *domain.UnknownEventError {
		_, err := d.Decode(name, []byte(`{}`))
		unknown, ok := errors.AsType[*domain.UnknownEventError](err)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, name, unknown.Name)
		return unknown
	}
	for _, name := range []string{
		"OrderBook.OrderShipped.v1", "orderbook.orderplaced.v1", "OrderBook.OrderPlaced", "OrderBook.OrderPlaced.v0", "OrderBook.OrderPlaced.v01",
		"OrderBook.OrderPlaced.v+1", "OrderBook.OrderPlaced.v-1", "OrderBook.OrderPlaced.v99999999999999999999", "OrderBook.OrderPlaced.v", ".v1", "",
	} {
		require.Empty(t, unknown(name).Known, name)
		require.False(t, d.Knows(name), name)
		_, err := d.EventNamed(name)
		require.Error(t, err, name)
	}
	newer := unknown("OrderBook.OrderCancelled.v4")
	require.Equal(t, "OrderBook.OrderCancelled.v3", newer.Known)
	require.EqualError(t, newer, "domain: OrderBook.OrderCancelled.v4 is newer than the known OrderBook.OrderCancelled.v3; deploy a build that declares it, which then handles it by itself")

	older := unknown("Inventory.StockReserved.v1")
	require.Equal(t, "Inventory.StockReserved.v3", older.Known)
	require.EqualError(t, older, "domain: Inventory.StockReserved.v1 is older than the known Inventory.StockReserved.v3, and nothing reads it; deploy a build with domain.Upcast(1, …), then replay")
	require.True(t, d.Knows("Inventory.StockReserved.v1"))
	require.True(t, d.Knows("OrderBook.OrderCancelled.v4"))
}

func TestDecode_DataThatItCannotRead(t *testing.T) {
	d := newOrdering(t)
	for _, data := range []string{``, `null`, " null\n", `[]`, `{"order_id":1}`, `{"order_id":"1"`} {
		_, err := d.Decode("OrderBook.OrderPlaced.v1", []byte(data))
		require.ErrorContains(t, err, "OrderBook.OrderPlaced.v1", "%q", data)
	}
	_, err := d.Decode("OrderBook.OrderCancelled.v1", []byte(`{"Why":1}`))
	require.ErrorContains(t, err, "OrderBook.OrderCancelled.v1 can't be decoded as domain_test.CancelledV1")
}

type Measured struct{ Value float64 }

type Shifting struct{ object bool }

func (*Shifting) UnmarshalJSON([]byte) error { return nil }

func (s Shifting) MarshalJSON() ([]byte, error) {
	if s.object {
		return []byte("{}"), nil
	}
	return []byte("null"), nil
}

func TestEncode_Refuses(t *testing.T) {
	d, err := domain.New("ordering",
		domain.Aggregate[*Order]("order", domain.Event[OrderPlaced](), domain.Event[Measured](), domain.Event[Shifting]()),
		domain.Foreign[StockReserved]("Inventory.StockReserved.v1"),
	)
	require.NoError(t, err)
	refused := func(event any) error {
		_, _, err := d.Encode(event)
		require.Error(t, err)
		return err
	}
	require.EqualError(t, refused(&OrderPlaced{}), "domain ordering: domain_test.OrderPlaced was raised as a pointer; raise it by value: Raise(domain_test.OrderPlaced{…})")
	require.ErrorContains(t, refused(Measured{math.NaN()}), "domain_test.Measured can't be encoded")
	require.ErrorContains(t, refused(Shifting{}), "encodes as null")
	_, _, err = d.Encode(Shifting{object: true})
	require.NoError(t, err)
	require.ErrorContains(t, refused(StockReserved{}), "another context's event")
	require.EqualError(t, refused(nil), "domain ordering: nil stands where a value of a declared type belongs: give one")
	for _, event := range []any{NoteAdded{}, &NoteAdded{}, "text", map[string]any{}} {
		undeclared, ok := errors.AsType[*domain.UndeclaredError](refused(event))
		require.True(t, ok)
		require.Equal(t, "ordering", undeclared.Domain)
		require.Contains(t, undeclared.Error(), "is not declared; add domain.Event[")
		require.Contains(t, undeclared.Error(), "domain.PartnerEvent if a partner does")
	}
}

func TestTypes_UndeclaredNamesTheRemedy(t *testing.T) {
	d := newOrdering(t)
	_, err := domain.AggregateTypeFor[*Account](d)
	require.EqualError(t, err, "domain order-book: *domain_test.Account is not declared; add domain.Aggregate[*domain_test.Account](…)")
	_, err = d.AggregateTypeOf(&Account{})
	require.Error(t, err)
	_, err = d.AggregateTypeOf(nil)
	require.Error(t, err)
	_, err = domain.EventTypeFor[*OrderPlaced](d)
	require.EqualError(t, err, "domain order-book: *domain_test.OrderPlaced is a pointer, and declared is domain_test.OrderPlaced: give it by value")
	_, err = domain.EventTypeFor[Deposited](d)
	require.ErrorContains(t, err, "add domain.Event[domain_test.Deposited]() to the aggregate that raises it, or domain.Foreign[domain_test.Deposited](…)")

	a, err := domain.AggregateTypeFor[*Order](d)
	require.NoError(t, err)
	require.Equal(t, "order-book::order", a.Category)
	require.Equal(t, &Order{}, a.New())
	e, err := domain.EventTypeFor[StockReserved](d)
	require.NoError(t, err)
	require.True(t, e.Foreign)
}

// Types that New must refuse.
type (
	pointerRoot   struct{ *domain.Root }
	embeddedIface struct{ domain.AggregateRoot }
	nestedRoot    struct{ baseRoot }
	baseRoot      struct{ domain.Root }

	Generic[T any] struct{ Value T }
	Größe          struct{ Value int } //nolint:asciicheck // what is refused
	text           string
	hidden         struct{ orderID string }
	pointerJSON    struct{ A int }
	stamped        struct {
		time.Time
		Text string
	}
	channels struct{ C chan int }
	explodes struct{ A int }
	ignored  struct {
		A int
		C chan int `json:"-"`
	}
)

func (*pointerJSON) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }
func (explodes) MarshalJSON() ([]byte, error)     { panic("no zero value, please") }
func (*explodes) UnmarshalJSON([]byte) error      { return nil }

// S1-22: among others, two types under one name. N2: what JSON would lose.
func TestNew_RefusesWithTheRemedy(t *testing.T) {
	_ = hidden{orderID: ""}
	order := func(options ...domain.AggregateOption) domain.Element {
		return domain.Aggregate[*Order]("order", options...)
	}
	event := func(options ...domain.EventOption) domain.Element {
		return order(domain.Event[OrderCancelled](options...))
	}
	byOrder := domain.OrderedBy(func(e OrderPlaced) string { return e.OrderID })
	for name, c := range map[string]struct {
		elements []domain.Element
		want     string
	}{
		"nil element":   {[]domain.Element{order(), nil}, "element 2 is nil"},
		"nil option":    {[]domain.Element{order(domain.Event[OrderPlaced](), nil)}, `aggregate "order": option 2 is nil`},
		"nil event opt": {[]domain.Element{event(nil)}, "event Ordering.OrderCancelled: option 1 is nil"},

		"aggregate name empty":   {[]domain.Element{domain.Aggregate[*Order]("")}, `aggregate "" (*domain_test.Order): its name must be`},
		"aggregate name upper":   {[]domain.Element{domain.Aggregate[*Order]("Order")}, `aggregate "Order"`},
		"aggregate name dot":     {[]domain.Element{domain.Aggregate[*Order]("a.b")}, `aggregate "a.b"`},
		"aggregate name colons":  {[]domain.Element{domain.Aggregate[*Order]("a::b")}, `aggregate "a::b"`},
		"aggregate by value":     {[]domain.Element{domain.Aggregate[pointerRoot]("order")}, "is not a pointer: declare domain.Aggregate[*domain_test.pointerRoot]"},
		"aggregate interface":    {[]domain.Element{domain.Aggregate[domain.AggregateRoot]("order")}, "is not a pointer"},
		"pointer to root":        {[]domain.Element{domain.Aggregate[*pointerRoot]("order")}, "must embed domain.Root itself, by value"},
		"embedded interface":     {[]domain.Element{domain.Aggregate[*embeddedIface]("order")}, "must embed domain.Root itself, by value"},
		"aggregate type twice":   {[]domain.Element{order(), domain.Aggregate[*Order]("other")}, `aggregate "other": *domain_test.Order is already declared as "order"`},
		"aggregate name twice":   {[]domain.Element{order(), domain.Aggregate[*Invoice]("order")}, `aggregate "order" is both *domain_test.Order and *domain_test.Invoice: give one of them another name`},
		"aggregate exactly same": {[]domain.Element{order(), order()}, `*domain_test.Order is already declared as "order"`},

		"event twice":            {[]domain.Element{order(domain.Event[OrderPlaced](), domain.Event[OrderPlaced]())}, "domain_test.OrderPlaced is already declared as Ordering.OrderPlaced of ordering::order"},
		"event of two":           {[]domain.Element{order(domain.Event[OrderPlaced]()), domain.Aggregate[*Invoice]("invoice", domain.Event[OrderPlaced]())}, "an event type belongs to one aggregate"},
		"event and foreign":      {[]domain.Element{order(domain.Event[OrderPlaced]()), domain.Foreign[OrderPlaced]("Sales.OrderPlaced.v1")}, "event Sales.OrderPlaced: domain_test.OrderPlaced is already declared as Ordering.OrderPlaced of ordering::order"},
		"two events, one name":   {[]domain.Element{order(domain.Event[OrderPlaced](), domain.Event[NoteAdded](domain.Named("OrderPlaced")))}, "event name Ordering.OrderPlaced is used by domain_test.OrderPlaced and domain_test.NoteAdded"},
		"pointer event":          {[]domain.Element{order(domain.Event[*OrderPlaced]())}, "event *domain_test.OrderPlaced is a pointer: declare it by value, as domain_test.OrderPlaced"},
		"text event":             {[]domain.Element{order(domain.Event[text]())}, "event domain_test.text is not a struct"},
		"event without a name":   {[]domain.Element{order(domain.Event[struct{ A int }]())}, "domain.Named(…)"},
		"generic event":          {[]domain.Element{order(domain.Event[Generic[int]]())}, "domain.Named(…)"},
		"event name not ASCII":   {[]domain.Element{order(domain.Event[Größe]())}, `"Größe" can't be its name`},
		"named empty":            {[]domain.Element{event(domain.Named(""))}, `"" can't be its name`},
		"named with context":     {[]domain.Element{event(domain.Named("Ordering.X"))}, `"Ordering.X" can't be its name`},
		"version 0":              {[]domain.Element{event(domain.Version(0))}, "can't be version 0: versions start at 1"},
		"hidden fields":          {[]domain.Element{order(domain.Event[hidden]())}, "hidden.orderID is unexported and would be lost: export it, tag it json:\"-\" if it needn't be kept, or give hidden MarshalJSON and UnmarshalJSON"},
		"pointer MarshalJSON":    {[]domain.Element{order(domain.Event[pointerJSON]())}, "give it a value receiver"},
		"embedded time":          {[]domain.Element{order(domain.Event[stamped]())}, "stamped has the MarshalJSON of a type that it embeds"},
		"channel":                {[]domain.Element{order(domain.Event[channels]())}, "channels.C is a chan int, which JSON can't carry"},
		"alias with version":     {[]domain.Element{event(domain.Alias("Ordering.X.v1"))}, `write domain.Alias("Ordering.X")`},
		"alias empty":            {[]domain.Element{event(domain.Alias(""))}, "has an alias without a name"},
		"alias, no context":      {[]domain.Element{event(domain.Alias("OrderGone"))}, `event Ordering.OrderCancelled: no event of a context is called "OrderGone": an alias begins with the context, as in domain.Alias("Ordering.OrderGone")`},
		"alias, a category":      {[]domain.Element{event(domain.Alias("ordering::OrderGone"))}, `as in domain.Alias("Ordering.OrderGone")`},
		"alias, small":           {[]domain.Element{event(domain.Alias("ordering.OrderGone"))}, `no event of a context is called "ordering.OrderGone"`},
		"alias, foreign":         {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved.v1", domain.Alias("StockTaken"))}, `as in domain.Alias("Inventory.StockTaken")`},
		"alias of itself":        {[]domain.Element{event(domain.Alias("Ordering.OrderCancelled"))}, "the alias Ordering.OrderCancelled is its name already"},
		"alias of another":       {[]domain.Element{order(domain.Event[OrderPlaced](), domain.Event[NoteAdded](domain.Alias("Ordering.OrderPlaced")))}, "event name Ordering.OrderPlaced is used by"},
		"upcast missing":         {[]domain.Element{event(domain.Version(2))}, "event Ordering.OrderCancelled is version 2 but nothing reads version 1: add domain.Upcast(1, func(old OrderCancelledV1) domain_test.OrderCancelled {…})"},
		"upcast missing, first":  {[]domain.Element{event(domain.Version(3), domain.Upcast(2, cancelledV2))}, "add domain.Upcast(1, func(old OrderCancelledV1) domain_test.CancelledV2 {…})"},
		"upcast missing, middle": {[]domain.Element{event(domain.Version(3), domain.Upcast(1, cancelledV1))}, "nothing reads version 2"},
		"upcast doesn't meet":    {[]domain.Element{event(domain.Version(3), domain.Upcast(1, func(CancelledV1) CancelledV1 { return CancelledV1{} }), domain.Upcast(2, cancelledV2))}, "domain.Upcast(1, …) returns domain_test.CancelledV1, and version 2 is domain_test.CancelledV2"},
		"upcast to another":      {[]domain.Element{event(domain.Version(2), domain.Upcast(1, cancelledV1))}, "domain.Upcast(1, …) returns domain_test.CancelledV2, and version 2 is domain_test.OrderCancelled"},
		"upcast twice":           {[]domain.Element{event(domain.Version(2), domain.Upcast(1, cancelledV2), domain.Upcast(1, cancelledV2))}, "two upcasters from version 1"},
		"upcast too high":        {[]domain.Element{event(domain.Upcast(1, cancelledV2))}, "is version 1, so nothing is upcast from version 1"},
		"upcast from 0":          {[]domain.Element{event(domain.Version(2), domain.Upcast(1, cancelledV2), domain.Upcast(0, cancelledV1))}, "nothing is upcast from version 0"},
		"upcast nil":             {[]domain.Element{event(domain.Version(2), domain.Upcast[CancelledV1, OrderCancelled](1, nil))}, "domain.Upcast(1, nil) has no function"},

		"ordered by nothing": {[]domain.Element{event(domain.OrderedBy[OrderCancelled](nil))}, "event Ordering.OrderCancelled: domain.OrderedBy(nil) has no function"},
		"ordered by another": {[]domain.Element{event(domain.OrderedBy(func(OrderPlaced) string { return "" }))}, "its domain.OrderedBy takes domain_test.OrderPlaced: let it take domain_test.OrderCancelled"},
		"ordered by, some":   {[]domain.Element{order(domain.Event[OrderPlaced](byOrder), domain.Event[NoteAdded]())}, `aggregate "order": events [Ordering.OrderPlaced] have a domain.OrderedBy and [Ordering.NoteAdded] have none`},
		"foreign ordered by": {[]domain.Element{domain.Foreign[OrderPlaced]("Sales.OrderPlaced.v1", byOrder)}, "foreign event Sales.OrderPlaced can't be OrderedBy"},

		"foreign of one's own":    {[]domain.Element{domain.Foreign[StockReserved]("Ordering.StockReserved.v1")}, "foreign event Ordering.StockReserved is this context's own: declare domain.Event[domain_test.StockReserved]()"},
		"foreign without version": {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved")}, `foreign event domain_test.StockReserved: "Inventory.StockReserved" is not an event name such as Ordering.OrderPlaced.v1`},
		"foreign published":       {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved.v1", domain.Published())}, "can't be Published"},
		"foreign named":           {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved.v1", domain.Named("X"))}, "can't be Named"},
		"foreign with version":    {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved.v1", domain.Version(2))}, `can't have a Version: it stands in "Inventory.StockReserved.v1"`},
		"from of one's own":       {[]domain.Element{order(domain.Event[OrderPlaced](domain.From("sales::sale")))}, "event Ordering.OrderPlaced can't have a domain.From: its stream is its aggregate's"},
		"from nowhere":            {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved.v1", domain.From(""))}, `domain.From("") names no stream: write its category, as in "billing::charge"`},
		"from here":               {[]domain.Element{domain.Foreign[StockReserved]("Inventory.StockReserved.v1", domain.From("ordering::order"))}, "is a stream of this context's own: declare domain.Event[domain_test.StockReserved]()"},
		"foreign pointer":         {[]domain.Element{domain.Foreign[*StockReserved]("Inventory.StockReserved.v1")}, "is a pointer"},
		"foreign twice":           {[]domain.Element{domain.Foreign[StockReserved]("Inventory.A.v1"), domain.Foreign[StockReserved]("Inventory.B.v1")}, "domain_test.StockReserved is already declared as Inventory.A:"},
		"foreign name twice":      {[]domain.Element{domain.Foreign[StockReserved]("Inventory.A.v1"), domain.Foreign[NoteAdded]("Inventory.A.v2", domain.Upcast(1, func(StockReserved) NoteAdded { return NoteAdded{} }))}, "event name Inventory.A is used by"},
		"foreign gap":             {[]domain.Element{domain.Foreign[OrderCancelled]("Inventory.A.v4", domain.Upcast(2, cancelledV2))}, "nothing reads version 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := domain.New("ordering", c.elements...)
			require.ErrorContains(t, err, c.want)
			for line := range strings.Lines(err.Error()) {
				require.True(t, strings.HasPrefix(line, "domain ordering: "), line)
			}
			require.Equal(t, 1, strings.Count(err.Error(), "domain ordering: "), "one mistake is one line:\n%v", err)
		})
	}
}

func TestOrderingKey(t *testing.T) {
	d := domain.MustNew("ordering",
		domain.Aggregate[*Order]("order", domain.Event[OrderPlaced](domain.OrderedBy(func(e OrderPlaced) string { return "order " + e.OrderID }))),
		domain.Aggregate[*Invoice]("invoice", domain.Event[NoteAdded]()),
	)
	placed, err := domain.EventTypeFor[OrderPlaced](d)
	require.NoError(t, err)
	key, ok := placed.OrderingKey(OrderPlaced{OrderID: "1"})
	require.True(t, ok)
	require.Equal(t, "order 1", key)
	note, err := domain.EventTypeFor[NoteAdded](d)
	require.NoError(t, err)
	_, ok = note.OrderingKey(NoteAdded{})
	require.False(t, ok)
}

// N: a foreign event comes by the streams of the context in its name, whichever
// aggregate they are of; by another only if it was declared so.
func TestComesBy_N_TheContextInTheName(t *testing.T) {
	d, err := domain.New("shipping",
		domain.Aggregate[*Order]("shipment", domain.Event[NoteAdded]()),
		domain.Foreign[OrderPlaced]("OrderBook.OrderPlaced.v1", domain.Alias("Sales.Placed")),
		domain.Foreign[StockReserved]("com.partner.reserved.v7", domain.From("partner-stock")),
	)
	require.NoError(t, err)
	placed, err := domain.EventTypeFor[OrderPlaced](d)
	require.NoError(t, err)
	for _, category := range []string{"order-book::order", "order_book::other", "sales::sale"} {
		require.True(t, placed.ComesBy(category), category)
	}
	for _, category := range []string{"", "order-bok::order", "order-book", "order-book::", "::order", "OrderBook::order", "order-book.order", "shipping::shipment", "salesorder::sale"} {
		require.False(t, placed.ComesBy(category), category)
	}
	reserved, err := domain.EventTypeFor[StockReserved](d)
	require.NoError(t, err)
	require.Equal(t, "partner-stock", reserved.Category)
	require.True(t, reserved.ComesBy("partner-stock"))
	require.False(t, reserved.ComesBy("partner::stock"))
	note, err := domain.EventTypeFor[NoteAdded](d)
	require.NoError(t, err)
	require.True(t, note.ComesBy("shipping::shipment"))
	require.False(t, note.ComesBy("order-book::order"))
}

func TestNew_Accepts(t *testing.T) {
	for name, elements := range map[string][]domain.Element{
		"nothing":                 nil,
		"aggregate without event": {domain.Aggregate[*Order]("order")},
		"nested root":             {domain.Aggregate[*nestedRoot]("order")},
		"empty event":             {domain.Aggregate[*Order]("order", domain.Event[struct{}](domain.Named("Opened")))},
		"generic, named":          {domain.Aggregate[*Order]("order", domain.Event[Generic[int]](domain.Named("Changed")))},
		"panics on zero":          {domain.Aggregate[*Order]("order", domain.Event[explodes]())},
		"ignored channel":         {domain.Aggregate[*Order]("order", domain.Event[ignored]())},
		"old foreign versions":    {domain.Foreign[StockReserved]("com.partner.reserved.v7")},
	} {
		_, err := domain.New("o2_b-c", elements...)
		require.NoError(t, err, name)
	}
}

// Kafka takes topics of 249 letters, and a context's and an aggregate's name make one.
func TestNew_NamesThatAreTooLong(t *testing.T) {
	longest := strings.Repeat("n", 64)
	_, err := domain.New(longest, domain.Aggregate[*Order](longest, domain.Event[NoteAdded]()))
	require.NoError(t, err)

	_, err = domain.New(longest+"n", domain.Aggregate[*Order](longest+"n", domain.Event[NoteAdded]()), domain.Process[*Ship](longest+"n"))
	require.ErrorContains(t, err, `n" can't be a context's name: use 1 to 64 lower-case letters`)
	require.ErrorContains(t, err, `n" (*domain_test.Order): its name must be 1 to 64 lower-case letters`)
	require.ErrorContains(t, err, `n" (*domain_test.Ship): its name must be 1 to 64 lower-case letters`)
}

func TestNew_NamesOfContexts(t *testing.T) {
	for _, name := range []string{"", "Ordering", "a.b", "a::b", "1a", "-a", "a b", "größe"} {
		_, err := domain.New(name)
		require.ErrorContains(t, err, "can't be a context's name", name)
	}
	for context, want := range map[string]string{"ordering": "Ordering.NoteAdded.v1", "order-book": "OrderBook.NoteAdded.v1", "a_b2--c": "AB2C.NoteAdded.v1"} {
		d, err := domain.New(context, domain.Aggregate[*Order]("order", domain.Event[NoteAdded]()))
		require.NoError(t, err)
		require.Equal(t, context, d.Name())
		require.Equal(t, want, d.Events()[0].WireName())
	}
}

func TestNew_ReportsAllMistakesAtOnce(t *testing.T) {
	_, err := domain.New("Bad",
		nil,
		domain.Aggregate[*Order]("Order", domain.Event[*OrderPlaced](), domain.Event[OrderCancelled](domain.Version(2)), nil),
		domain.Foreign[StockReserved]("nonsense", domain.Published()),
	)
	require.Len(t, strings.Split(err.Error(), "\n"), 7)
	require.PanicsWithError(t, err.Error(), func() {
		domain.MustNew("Bad",
			nil,
			domain.Aggregate[*Order]("Order", domain.Event[*OrderPlaced](), domain.Event[OrderCancelled](domain.Version(2)), nil),
			domain.Foreign[StockReserved]("nonsense", domain.Published()),
		)
	})
}
