package domain_test

import (
	"fmt"

	"github.com/waybill-go/waybill/domain"
)

type Shipment struct{ domain.Root }

// ShipmentSent has its weight in grams since version 2.
type ShipmentSent struct {
	Grams int `json:"grams"`
}

// ShipmentSentV1 is how stored messages of version 1 look.
type ShipmentSentV1 struct {
	Kilos float64 `json:"kilos"`
}

func shipmentSentV1(old ShipmentSentV1) ShipmentSent {
	return ShipmentSent{Grams: int(old.Kilos * 1000)}
}

func ExampleUpcast() {
	shipping := domain.MustNew("shipping",
		domain.Aggregate[*Shipment]("shipment",
			domain.Event[ShipmentSent](domain.Version(2), domain.Upcast(1, shipmentSentV1)),
		),
	)
	event, err := shipping.Decode("Shipping.ShipmentSent.v1", []byte(`{"kilos": 2.5}`))
	fmt.Printf("%+v %v\n", event, err)
	_, err = shipping.Decode("Shipping.ShipmentSent.v3", []byte(`{}`))
	fmt.Println(err)
	// Output:
	// {Grams:2500} <nil>
	// domain: Shipping.ShipmentSent.v3 is newer than the known Shipping.ShipmentSent.v2; deploy a build that declares it, which then handles it by itself
}
