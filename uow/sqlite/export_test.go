package sqlite

import (
	"time"

	"github.com/waybill-go/waybill/uow"
)

// SetWriterTimeout shortens the wait for the writer.
func SetWriterTimeout(p uow.Provider, d time.Duration) { p.(*provider).writerTimeout = d }
