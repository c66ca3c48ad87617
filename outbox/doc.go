// Package outbox is what programs see of the outbox, which holds events between the
// transaction that made them and the brokers they leave for: rows, targets, envelopes,
// settings, filters, states, and what operators' changes came to. An engine publishes.
package outbox
