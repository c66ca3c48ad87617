package shipping

import (
	"errors"

	"github.com/waybill-go/waybill/domain"
)

// Shipment is what leaves the house for an order, and has its number.
type Shipment struct {
	domain.Root
	Labels []string `json:",omitempty"`
	Status Status
}

// Status is how far a shipment has come.
type Status string

// A shipment is prepared, and perhaps cancelled.
const (
	Prepared  Status = "prepared"
	Cancelled Status = "cancelled"
)

// ErrCancelled is a shipment that goes nowhere any more.
var ErrCancelled = errors.New("shipping: the shipment is cancelled")

// Prepare is the shipment of an order.
func Prepare(orderID string) *Shipment {
	s := &Shipment{Root: domain.RootWithID(orderID), Status: Prepared}
	s.Raise(ShipmentPrepared{ShipmentID: s.ID()})
	return s
}

// AddLabel sticks something on the parcel.
func (s *Shipment) AddLabel(text string) error {
	if s.Status == Cancelled {
		return ErrCancelled
	}
	s.Labels = append(s.Labels, text)
	s.Raise(ShipmentLabelled{ShipmentID: s.ID(), Text: text})
	return nil
}

// Cancel keeps the parcel here.
func (s *Shipment) Cancel() error {
	if s.Status == Cancelled {
		return ErrCancelled
	}
	s.Status = Cancelled
	s.Raise(ShipmentCancelled{ShipmentID: s.ID()})
	return nil
}

// ShipmentPrepared says that a parcel is to be packed.
type ShipmentPrepared struct {
	ShipmentID string `json:"shipment_id"`
}

// ShipmentLabelled says what stands on a parcel.
type ShipmentLabelled struct {
	ShipmentID string `json:"shipment_id"`
	Text       string `json:"text"`
}

// ShipmentCancelled says that a parcel stays.
type ShipmentCancelled struct {
	ShipmentID string `json:"shipment_id"`
}
