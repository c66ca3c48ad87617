package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// holder is who has the file's one writer, for as long as a transaction of its lasts.
type holder struct {
	unit         *uow.Unit // may be nil
	since        time.Time
	typ, message string // that it handles; empty: it is none of a handler
}

func hold(ctx context.Context, unit *uow.Unit) *holder {
	meta, _ := domain.MetadataFrom(ctx)
	return &holder{unit: unit, since: time.Now(), typ: meta.Type, message: meta.ID}
}

func (h *holder) String() string {
	if h.message == "" {
		return "a unit of work outside of handlers"
	}
	return fmt.Sprintf("the handler of %s, message %s,", h.typ, h.message)
}

// WriterHeld says who of this process has the file's one writer in a transaction, and for how long;
// 0: nobody has. Others can't write meanwhile, which is no fault of the file.
func (p *provider) WriterHeld() (by string, since time.Duration) {
	h := p.writer.holder.Load()
	if h == nil {
		return "", 0
	}
	return h.String(), time.Since(h.since)
}

// has is who of this process has the writer, for an error of those who wait for it.
func (w *oneWriter) has() string {
	h := w.holder.Load()
	if h == nil {
		return ""
	}
	return fmt.Sprintf("; %v has had it for %v", h, time.Since(h.since).Round(time.Millisecond))
}

// since adds who has the writer to why somebody waits no longer, if that is the time.
func (w *oneWriter) since(cause error) error {
	if who := w.has(); who != "" && errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w while it waited for the file's one writer%s", cause, who)
	}
	return cause
}
