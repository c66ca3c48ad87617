package domain

import (
	"reflect"
	"slices"
)

// DocumentIndex is a value of an aggregate by which it is found.
type DocumentIndex struct {
	Name   string
	Unique bool
	value  func(AggregateRoot) string
}

// Of is the value of an aggregate; "": it has none.
func (i DocumentIndex) Of(a AggregateRoot) string { return i.value(a) }

// Index lets an aggregate that is kept as a document be found by a value of it:
//
//	domain.Aggregate[*Member]("member",
//		domain.Index("city", func(m *Member) string { return m.City }),
//		domain.Unique("email", func(m *Member) string { return strings.ToLower(m.Email) }),
//		…
//	)
//
// See repository.Repository.By. An empty value isn't kept. The same state must always
// have the same value: value reads nothing but the aggregate. One that is to return
// another than it did needs another name, under which all aggregates are entered anew.
// It has 64 bytes at most, as an aggregate's name is spelled.
//
// For more than one value at a time, for ranges and for sorting, keep the aggregate in
// tables of its own, or make a projection.
func Index[A AggregateRoot](name string, value func(A) string) AggregateOption {
	return index("domain.Index", name, false, value)
}

// Unique is [Index] of values that no two aggregates have. A save that would break it
// fails with a repository.TakenError.
func Unique[A AggregateRoot](name string, value func(A) string) AggregateOption {
	return index("domain.Unique", name, true, value)
}

func index[A AggregateRoot](option, name string, unique bool, value func(A) string) AggregateOption {
	return aggregateOption(func(b *builder, t *AggregateType) {
		switch {
		case !isName(name):
			b.errorf("aggregate %q: %s(%.100q): an index's name has 1 to %d lower-case letters, digits, '-' and '_', as in %q", t.Name, option, name, maxName, "email")
		case value == nil:
			b.errorf("aggregate %q: %s(%q, nil) has no function: give it one", t.Name, option, name)
		case reflect.TypeFor[A]() != t.goType:
			b.errorf("aggregate %q: %s(%q) takes %s: let it take %s", t.Name, option, name, reflect.TypeFor[A](), t.goType)
		case slices.ContainsFunc(t.Indexes, func(other DocumentIndex) bool { return other.Name == name }):
			b.errorf("aggregate %q has two indexes %q: give one of them another name", t.Name, name)
		default:
			t.Indexes = append(t.Indexes, DocumentIndex{Name: name, Unique: unique, value: func(a AggregateRoot) string { return value(a.(A)) }})
		}
	})
}
