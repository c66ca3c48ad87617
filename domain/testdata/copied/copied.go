// Package copied has an aggregate that is copied, which go vet must report.
package copied

import "github.com/waybill-go/waybill/domain"

type Order struct {
	domain.Root
	Status string
}

func New() *Order {
	return &Order{Root: domain.NewRoot(), Status: "placed"} // fine
}

func Copy(order *Order) string {
	copied := *order // reported
	return copied.Status
}
