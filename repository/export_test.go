package repository

import (
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// Persister is a repository's.
func Persister[A domain.AggregateRoot](r *Repository[A]) uow.Persister { return r.store }

// Units are a repository's.
func Units[A domain.AggregateRoot](r *Repository[A]) *uow.Manager { return r.units }
