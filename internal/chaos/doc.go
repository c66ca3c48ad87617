// Package chaos runs engines, writers and consumers as processes against a PostgreSQL and a
// Kafka, disturbs them in an order that a seed decides, and has package verdict judge what
// is left. The command waybill-chaos is its face; the fault tests use its parts.
package chaos
