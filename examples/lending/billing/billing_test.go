package billing

import (
	"testing"

	"github.com/waybill-go/waybill/contract/contracttest"
)

// What others read, and what is stored, can be read after every change.
func TestContract(t *testing.T) { contracttest.Check(t, Domain, "testdata") }
