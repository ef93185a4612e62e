// Package otellock makes OpenTelemetry spans of the waits and holds of etcdlock's
// locks. It is a module of its own: go get github.com/etcdlock/etcdlock/otellock
//
//	locks := etcdlock.New(client, etcdlock.WithHooks(otellock.Hooks()))
//
// A wait is a span "etcdlock.wait", from the call until the lock is granted or the
// call fails. A hold is a span "etcdlock.hold", from the grant until Unlock is called
// or the lock is lost. Both are children of the span in the ctx of the call that asked
// for the lock. If that span has ended by the time the wait or the hold ends, the new
// span begins a trace of its own with a link to it, since the old trace may have been
// exported already. Without a span in the ctx, each span begins a trace of its own.
//
// A span is made when the wait or the hold has ended, with the times at which it began
// and ended, and nothing is kept until then. Therefore a process that dies while it
// holds a lock leaves no span of that hold, and the spans of what runs under the lock
// are children of the caller's span, not of the hold's.
//
// Attributes:
//
//	etcdlock.name     the name of the lock
//	etcdlock.mode     "exclusive", "shared" or "elector"
//	etcdlock.lease    the session's lease, in hex as etcdctl shows it; none of a call that got no session
//	etcdlock.key      the key of the entry, if it was in the queue
//	etcdlock.token    its fencing token, likewise
//	etcdlock.outcome  of a wait: "granted"; "locked" (TryLock), "timeout", "cancelled", "error" (etcd refused);
//	                  of a hold: "released";
//	                  of both: "session_expired", "session_closed", "removed" (by somebody else)
//	error.type        the outcome, if the span's status is an error
//
// The outcomes "locked", "cancelled" and "session_closed" are what the caller asked
// for, so they leave the status unset. A status that is an error has the error's text,
// with what is not UTF-8 replaced. The event "enqueued" of a wait has the time at which
// the entry was in the queue.
package otellock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/outcome"
)

// An Option changes what Hooks makes.
type Option interface{ apply(*config) }

type config struct{ provider trace.TracerProvider }

type option func(*config)

func (f option) apply(c *config) { f(c) }

// WithTracerProvider sets the provider of the tracer. The default is the global
// TracerProvider, also if p is nil.
func WithTracerProvider(p trace.TracerProvider) Option {
	return option(func(c *config) {
		if p != nil {
			c.provider = p
		}
	})
}

// Hooks returns the hooks to pass to etcdlock.WithHooks. Any number of sessions may
// share them.
func Hooks(opts ...Option) *etcdlock.Hooks {
	c := config{provider: otel.GetTracerProvider()}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	t := tracer{c.provider.Tracer("github.com/etcdlock/etcdlock/otellock")}
	return &etcdlock.Hooks{
		Granted: func(ctx context.Context, i etcdlock.GrantedInfo) {
			t.wait(ctx, i.Acquisition, i.Granted, outcome.Granted, nil)
		},
		Abandoned: func(ctx context.Context, i etcdlock.AbandonedInfo) {
			t.wait(ctx, i.Acquisition, i.Asked.Add(i.Wait), outcome.Of(i.Err), i.Err)
		},
		NoSession: func(ctx context.Context, i etcdlock.NoSessionInfo) {
			t.wait(ctx, i.Acquisition, i.Asked.Add(i.Wait), outcome.Of(i.Err), i.Err)
		},
		Released: func(ctx context.Context, i etcdlock.ReleasedInfo) {
			t.hold(ctx, i.Acquisition, i.Granted.Add(i.Held), outcome.Released, nil)
		},
		Lost: func(ctx context.Context, i etcdlock.LostInfo) {
			t.hold(ctx, i.Acquisition, i.Granted.Add(i.Held), outcome.Of(i.Cause), i.Cause)
		},
	}
}

type tracer struct{ trace.Tracer }

func (t tracer) wait(ctx context.Context, a etcdlock.Acquisition, until time.Time, word string, err error) {
	span := t.start(ctx, "etcdlock.wait", a, a.Asked, until, word)
	if !a.Enqueued.IsZero() {
		span.AddEvent("enqueued", trace.WithTimestamp(a.Enqueued))
	}
	end(span, until, word, err)
}

func (t tracer) hold(ctx context.Context, a etcdlock.Acquisition, until time.Time, word string, err error) {
	end(t.start(ctx, "etcdlock.hold", a, a.Granted, until, word), until, word, err)
}

func (t tracer) start(ctx context.Context, name string, a etcdlock.Acquisition, at, until time.Time, word string) trace.Span {
	attrs := []attribute.KeyValue{
		attribute.String("etcdlock.name", a.Name),
		attribute.String("etcdlock.mode", outcome.Mode(a)),
		attribute.String("etcdlock.outcome", word),
	}
	if a.Session != nil {
		attrs = append(attrs, attribute.String("etcdlock.lease", strconv.FormatInt(int64(a.Session.Lease()), 16)))
	}
	if a.Token != 0 {
		attrs = append(attrs, attribute.String("etcdlock.key", a.Key), attribute.Int64("etcdlock.token", a.Token))
	}
	opts := []trace.SpanStartOption{trace.WithTimestamp(at), trace.WithAttributes(attrs...)}
	if caller := trace.SpanFromContext(ctx); hasEnded(caller, until) {
		opts = append(opts, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: caller.SpanContext()}))
	}
	_, span := t.Start(ctx, name, opts...)
	return span
}

// hasEnded reports whether a span of this process was recorded and had ended by then. It is
// false for a span that is not sampled and for one of another process. A hook may come late,
// so it looks at when the span ended, where the span tells that, as those of the SDK do.
func hasEnded(s trace.Span, by time.Time) bool {
	sc := s.SpanContext()
	if !sc.IsSampled() || sc.IsRemote() || s.IsRecording() {
		return false
	}
	ended, ok := s.(interface{ EndTime() time.Time })
	return !ok || ended.EndTime().Before(by)
}

func end(span trace.Span, at time.Time, word string, err error) {
	switch word {
	case outcome.Granted, outcome.Released, outcome.Locked, outcome.Cancelled, outcome.SessionClosed:
	default:
		span.SetStatus(codes.Error, strings.ToValidUTF8(err.Error(), "\uFFFD"))
		span.SetAttributes(attribute.String("error.type", word))
	}
	span.End(trace.WithTimestamp(at))
}
