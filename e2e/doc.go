// Package e2e holds tests of the observatory in a real browser. It is a module of
// its own, so that nobody who uses Waybill gets what drives one.
package e2e
