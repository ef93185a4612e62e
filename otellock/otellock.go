// Package otellock makes OpenTelemetry spans of the waits and the holds of
// etcdlock's locks.
//
//	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithHooks(otellock.Hooks()))
//
// A wait, from the call until the lock is granted or not, is a span
// "etcdlock.wait"; a hold, from the grant until Unlock is called or the lock is
// lost, a span "etcdlock.hold". Both belong to the span in the ctx that the lock was
// asked for with: they are its children, and beside whatever else it does. What
// outlives it, such as a hold that the caller's span leaves behind, is a trace of
// its own with a link to it, since its trace may long be exported. Without a
// span in ctx they are traces of their own.
//
// Spans are made when what they tell of is over, with the times at which it began and
// ended. So a process that dies leaves none of the hold that it died in, as ever,
// and what a section does is not a child of the hold's span but of the caller's.
// Nothing is kept meanwhile.
//
// Attributes:
//
//	etcdlock.name     of the lock
//	etcdlock.mode     "exclusive" or "shared"
//	etcdlock.lease    the session's, in hex as etcdctl shows it
//	etcdlock.key      of the entry, once it was in the queue
//	etcdlock.token    its fencing token, likewise
//	etcdlock.outcome  of a wait: "granted"; "locked" (a Try), "timeout", "cancelled", "error" (etcd refused);
//	                  of a hold: "released";
//	                  of both: "session_expired", "session_closed", "removed" (by somebody else)
//	error.type        the outcome, where the span's status is an error
//
// "locked", "cancelled" and "session_closed" are the caller's own doing and leave the
// status unset. The wait's event "enqueued" is when the entry was in the queue.
package otellock

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/outcome"
)

// An Option changes what Hooks makes.
type Option interface{ apply(*config) }

type config struct{ provider trace.TracerProvider }

type option func(*config)

func (f option) apply(c *config) { f(c) }

// WithTracerProvider sets where the spans go; the default, also for nil, is the
// global TracerProvider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return option(func(c *config) {
		if p != nil {
			c.provider = p
		}
	})
}

// Hooks are for etcdlock.WithHooks, of any number of sessions.
func Hooks(opts ...Option) *etcdlock.Hooks {
	c := config{provider: otel.GetTracerProvider()}
	for _, o := range opts {
		o.apply(&c)
	}
	t := tracer{c.provider.Tracer("github.com/etcdlock/etcdlock/otellock")}
	return &etcdlock.Hooks{
		Granted: func(ctx context.Context, i etcdlock.GrantedInfo) {
			t.wait(ctx, i.Acquisition, i.Granted, outcome.Granted, nil)
		},
		Abandoned: func(ctx context.Context, i etcdlock.AbandonedInfo) {
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
	span := t.start(ctx, "etcdlock.wait", a, a.Asked, word)
	if !a.Enqueued.IsZero() {
		span.AddEvent("enqueued", trace.WithTimestamp(a.Enqueued))
	}
	end(span, until, word, err)
}

func (t tracer) hold(ctx context.Context, a etcdlock.Acquisition, until time.Time, word string, err error) {
	end(t.start(ctx, "etcdlock.hold", a, a.Granted, word), until, word, err)
}

func (t tracer) start(ctx context.Context, name string, a etcdlock.Acquisition, at time.Time, word string) trace.Span {
	attrs := []attribute.KeyValue{
		attribute.String("etcdlock.name", a.Name),
		attribute.String("etcdlock.mode", outcome.Mode(a)),
		attribute.String("etcdlock.lease", strconv.FormatInt(int64(a.Session.Lease()), 16)),
		attribute.String("etcdlock.outcome", word),
	}
	if a.Token != 0 {
		attrs = append(attrs, attribute.String("etcdlock.key", a.Key), attribute.Int64("etcdlock.token", a.Token))
	}
	opts := []trace.SpanStartOption{trace.WithTimestamp(at), trace.WithAttributes(attrs...)}
	if caller := trace.SpanFromContext(ctx); hasEnded(caller) {
		opts = append(opts, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: caller.SpanContext()}))
	}
	_, span := t.Start(ctx, name, opts...)
	return span
}

// hasEnded reports whether a span is one of this process that was recorded and
// is not anymore. One that is not sampled, or is another process's, never is.
func hasEnded(s trace.Span) bool {
	sc := s.SpanContext()
	return sc.IsSampled() && !sc.IsRemote() && !s.IsRecording()
}

func end(span trace.Span, at time.Time, word string, err error) {
	switch word {
	case outcome.Granted, outcome.Released, outcome.Locked, outcome.Cancelled, outcome.SessionClosed:
	default:
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(attribute.String("error.type", word))
	}
	span.End(trace.WithTimestamp(at))
}
