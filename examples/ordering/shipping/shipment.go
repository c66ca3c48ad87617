package shipping

import (
	"errors"

	"github.com/waybill-go/waybill/domain"
)

// Shipment is what is sent for an order, and has its number.
type Shipment struct {
	domain.Root
	Labels []string `json:",omitempty"`
	Status Status
}

// Status is how far a shipment has come.
type Status string

// A shipment is prepared, and then dispatched or cancelled: never both.
const (
	Prepared   Status = "prepared"
	Dispatched Status = "dispatched"
	Cancelled  Status = "cancelled"
)

// Why a shipment refuses: it goes nowhere any more, or has gone.
var (
	ErrCancelled  = errors.New("shipping: the shipment is cancelled")
	ErrDispatched = errors.New("shipping: the shipment is dispatched")
)

// Prepare is the shipment of an order.
func Prepare(orderID string) *Shipment {
	s := &Shipment{Root: domain.RootWithID(orderID), Status: Prepared}
	s.Raise(ShipmentPrepared{ShipmentID: s.ID()})
	return s
}

// here is nil as long as the parcel is in the house and wanted.
func (s *Shipment) here() error {
	switch s.Status {
	case Cancelled:
		return ErrCancelled
	case Dispatched:
		return ErrDispatched
	case Prepared:
	}
	return nil
}

// AddLabel sticks something on the parcel.
func (s *Shipment) AddLabel(text string) error {
	if err := s.here(); err != nil {
		return err
	}
	s.Labels = append(s.Labels, text)
	s.Raise(ShipmentLabelled{ShipmentID: s.ID(), Text: text})
	return nil
}

// Dispatch sends the parcel away.
func (s *Shipment) Dispatch() error {
	if err := s.here(); err != nil {
		return err
	}
	s.Status = Dispatched
	s.Raise(ShipmentDispatched{ShipmentID: s.ID()})
	return nil
}

// Cancel keeps the parcel here.
func (s *Shipment) Cancel() error {
	if err := s.here(); err != nil {
		return err
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

// ShipmentDispatched says that a parcel has left the house.
type ShipmentDispatched struct {
	ShipmentID string `json:"shipment_id"`
}

// ShipmentCancelled says that a parcel stays.
type ShipmentCancelled struct {
	ShipmentID string `json:"shipment_id"`
}
