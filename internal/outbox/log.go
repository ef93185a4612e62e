// A logger whose lines go through an Outbox.

package outbox

import (
	"context"
	"log/slog"
)

// Logger returns a logger that hands its lines to l, with the time at which they were made, and has l told what was
// dropped. A logger that is silent, or none, stays as it is. It is called before the first call is told.
func (o *Outbox) Logger(l *slog.Logger) *slog.Logger {
	if l == nil || l.Handler() == nil || l.Handler() == slog.DiscardHandler {
		return l
	}
	o.dropped = func(n int) {
		l.Warn("a hook or the log has blocked: sessions, acquisitions, renewals or lines went unreported", "dropped", n)
	}
	return slog.New(handler{l.Handler(), o})
}

type handler struct {
	to  slog.Handler
	out *Outbox
}

// Enabled does not ask the user's handler, which is asked when the line is delivered.
func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	h.out.Tell(func() {
		if h.to.Enabled(ctx, r.Level) {
			_ = h.to.Handle(ctx, r) // whose error slog's own loggers drop too
		}
	})
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.to.WithAttrs(attrs), h.out}
}
func (h handler) WithGroup(name string) slog.Handler { return handler{h.to.WithGroup(name), h.out} }
