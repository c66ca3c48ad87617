// Package outbox holds events between the transaction that made them and the
// brokers they leave for: their rows, the states those pass, and the processor
// that publishes them.
package outbox
