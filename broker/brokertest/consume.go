package brokertest

import "testing"

func (s suite) consume(t *testing.T) {
}
