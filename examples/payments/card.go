package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription/dedup"
)

// Payment is the body of a message in the topic payments.
type Payment struct {
	Card  string `json:"card"`
	Cents int64  `json:"cents"`
}

// Card is the entity: one document for each card.
type Card struct {
	Debited  int64 `json:"debited"` // cents
	Payments int   `json:"payments"`
}

// Confirmation is the body of a message in the topic confirmations.
type Confirmation struct {
	Payment       string `json:"payment"`
	Card          string `json:"card"`
	Number        int    `json:"number"`        // of the card's payments
	Debited       int64  `json:"debited"`       // up to now
	Authorization string `json:"authorization"` // another one each time it is made
}

func debit(_ context.Context, card *Card, m broker.Message) ([]broker.Message, error) {
	var p Payment
	if err := json.Unmarshal(m.Body, &p); err != nil {
		return nil, fmt.Errorf("payment: %w", err)
	}
	card.Debited += p.Cents
	card.Payments++
	body, err := json.Marshal(Confirmation{
		Payment: m.ID, Card: p.Card, Number: card.Payments, Debited: card.Debited, Authorization: uuid.NewString(),
	})
	return []broker.Message{{Topic: "confirmations", Key: p.Card, Body: body}}, err
}

// store is one, such as natskv's, that has documents and processed ids.
type store interface {
	dedup.Documents
	dedup.Processed
}

func cards(store store, confirmations broker.Publisher) (*dedup.Handler[Card], error) {
	return dedup.New(dedup.Config[Card]{
		Name:      "debit",
		Documents: store,
		Processed: store,
		Publisher: confirmations,
		Apply:     debit,
	})
}
