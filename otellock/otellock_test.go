package otellock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/otellock"
)

const hang = 30 * time.Second

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// tracing returns a provider and the exporter that keeps its spans.
func tracing(opts ...sdktrace.TracerProviderOption) (*sdktrace.TracerProvider, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	return sdktrace.NewTracerProvider(append(opts, sdktrace.WithSyncer(spans))...), spans
}

func newSession(t testing.TB, c *clientv3.Client, p trace.TracerProvider) *etcdlock.Session {
	t.Helper()
	s, err := etcdlock.NewSession(testCtx(t), c, etcdlock.WithTTL(time.Minute), etcdlock.WithHooks(otellock.Hooks(otellock.WithTracerProvider(p))))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func attrs(s tracetest.SpanStub) map[string]any {
	m := map[string]any{}
	for _, a := range s.Attributes {
		m[string(a.Key)] = a.Value.AsInterface()
	}
	return m
}

// summary lists name, outcome and status of each span of a lock.
func summary(spans tracetest.SpanStubs) []string {
	out := []string{}
	for _, s := range spans {
		if outcome := attrs(s)["etcdlock.outcome"]; outcome != nil {
			out = append(out, s.Name+" "+outcome.(string)+" "+s.Status.Code.String())
		}
	}
	return out
}

// The spans of a wait and a hold are children of the caller's span, and have the times
// at which they began and ended.
func TestSpans(t *testing.T) {
	provider, spans := tracing()
	s := newSession(t, etcdtest.Start(t).Client(t), provider)
	m := etcdlock.NewRWMutex(s, "jobs/report")
	before := time.Now()
	ctx, caller := provider.Tracer("test").Start(testCtx(t), "request")
	h, err := m.RLock(ctx)
	require.NoError(t, err)
	granted := time.Now()
	require.NoError(t, h.Unlock(testCtx(t)), "with another ctx")
	after := time.Now()
	require.NoError(t, s.Close()) // when that returns, all hooks were called
	caller.End()

	got := spans.GetSpans()
	require.Equal(t, []string{"etcdlock.wait granted Unset", "etcdlock.hold released Unset"}, summary(got))
	wait, hold := got[0], got[1]
	for _, span := range []tracetest.SpanStub{wait, hold} {
		require.Equal(t, caller.SpanContext().TraceID(), span.SpanContext.TraceID())
		require.Equal(t, caller.SpanContext().SpanID(), span.Parent.SpanID())
		require.Empty(t, span.Links)
		require.Equal(t, trace.SpanKindInternal, span.SpanKind)
		require.Equal(t, "github.com/etcdlock/etcdlock/otellock", span.InstrumentationScope.Name)
		a := attrs(span)
		require.NotEmpty(t, a["etcdlock.lease"])
		delete(a, "etcdlock.lease")
		delete(a, "etcdlock.outcome")
		require.Equal(t, map[string]any{"etcdlock.name": "jobs/report", "etcdlock.mode": "shared", "etcdlock.key": h.Key(), "etcdlock.token": h.Token()}, a)
	}
	require.Len(t, wait.Events, 1)
	require.Equal(t, "enqueued", wait.Events[0].Name)
	times := []time.Time{before, wait.StartTime, wait.Events[0].Time, wait.EndTime, granted}
	require.True(t, slices.IsSortedFunc(times, time.Time.Compare), times)
	times = []time.Time{wait.EndTime, hold.StartTime, granted, hold.EndTime, after}
	require.True(t, slices.IsSortedFunc(times, time.Time.Compare), times)
	require.Equal(t, wait.EndTime, hold.StartTime)
}

// Each way to end has its outcome. It is an error if the caller did not ask for it.
func TestSpans_Outcomes(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	provider, spans := tracing()
	s := newSession(t, client, provider)
	m := etcdlock.NewMutex(s, "a")
	h, err := m.Lock(testCtx(t))
	require.NoError(t, err)
	_, err = m.TryLock(testCtx(t))
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	ctx, cancel := context.WithTimeout(testCtx(t), time.Second) // time to enter the queue
	defer cancel()
	_, err = m.Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	tk, err := m.Enqueue(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, tk.Cancel(testCtx(t)))
	_, err = client.Delete(testCtx(t), h.Key())
	require.NoError(t, err)
	require.ErrorIs(t, h.Unlock(testCtx(t)), etcdlock.ErrLost)
	_, err = m.Lock(testCtx(t))
	require.NoError(t, err)
	_, err = client.Revoke(testCtx(t), s.Lease())
	require.NoError(t, err)
	require.ErrorIs(t, s.Refresh(testCtx(t)), etcdlock.ErrSessionExpired)
	require.NoError(t, s.Close())
	require.Equal(t, []string{
		"etcdlock.wait granted Unset",
		"etcdlock.wait locked Unset",
		"etcdlock.wait timeout Error",
		"etcdlock.wait cancelled Unset",
		"etcdlock.hold removed Error",
		"etcdlock.wait granted Unset",
		"etcdlock.hold session_expired Error",
	}, summary(spans.GetSpans()))
	for _, span := range spans.GetSpans() {
		failed := span.Status.Code == codes.Error
		if failed {
			require.Equal(t, attrs(span)["etcdlock.outcome"], attrs(span)["error.type"])
			require.NotEmpty(t, span.Status.Description)
		}
		require.Equal(t, failed, attrs(span)["error.type"] != nil)
		require.False(t, span.Parent.IsValid(), "a trace of its own, since the caller has no span")
		require.Empty(t, span.Links)
	}
	locked := spans.GetSpans()[1]
	require.NotContains(t, attrs(locked), "etcdlock.key", "it was never in the queue")
	require.Empty(t, locked.Events)

	spans.Reset()
	s = newSession(t, client, provider)
	_, err = etcdlock.NewMutex(s, "b").Lock(testCtx(t))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, []string{"etcdlock.wait granted Unset", "etcdlock.hold session_closed Unset"}, summary(spans.GetSpans()))
}

// A call that finds no session is a span, without a lease.
func TestSpans_NoSession(t *testing.T) {
	tap := etcdtest.NewTap()
	tap.Every("LeaseGrant", func(context.Context, *etcdtest.Call) error { return etcdtest.ErrTransport })
	provider, spans := tracing()
	locks := etcdlock.New(etcdtest.Start(t).Client(t, tap), etcdlock.WithHooks(otellock.Hooks(otellock.WithTracerProvider(provider))))
	ctx, cancel := context.WithTimeout(testCtx(t), 50*time.Millisecond)
	defer cancel()
	_, err := locks.Mutex("away").Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, locks.Close()) // waits for the hooks
	require.Equal(t, []string{"etcdlock.wait timeout Error"}, summary(spans.GetSpans()))
	require.NotContains(t, attrs(spans.GetSpans()[0]), "etcdlock.lease")
}

// A span that outlives the caller's span is linked to it.
func TestSpans_OutliveTheCaller(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	provider, spans := tracing()
	s := newSession(t, client, provider)
	m := etcdlock.NewMutex(s, "a")
	ctx, caller := provider.Tracer("test").Start(testCtx(t), "start the service")
	h, err := m.Lock(ctx)
	require.NoError(t, err)
	tk, err := m.Enqueue(ctx)
	require.NoError(t, err)
	caller.End()
	require.NoError(t, h.Unlock(testCtx(t)))
	<-tk.Done()
	require.NoError(t, tk.Cancel(testCtx(t)))
	require.NoError(t, s.Close())
	got := spans.GetSpans()
	require.ElementsMatch(t, []string{"etcdlock.wait granted Unset", "etcdlock.hold released Unset", "etcdlock.wait granted Unset", "etcdlock.hold released Unset"}, summary(got))
	linked := 0
	for _, span := range got {
		if attrs(span)["etcdlock.outcome"] == nil || span.Parent.SpanID() == caller.SpanContext().SpanID() {
			continue // the caller's own span, and the wait that ended within it
		}
		linked++
		require.False(t, span.Parent.IsValid())
		require.NotEqual(t, caller.SpanContext().TraceID(), span.SpanContext.TraceID())
		require.Len(t, span.Links, 1)
		require.Equal(t, caller.SpanContext().SpanID(), span.Links[0].SpanContext.SpanID())
	}
	require.Equal(t, 3, linked)
}

// The hooks come when the caller's span has ended, which it had not when the wait and the hold were over. Their spans
// are its children nevertheless.
func TestSpans_LateHooks(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	provider, spans := tracing()
	goOn := make(chan struct{})
	slow := &etcdlock.Hooks{Enqueued: func(context.Context, etcdlock.EnqueuedInfo) { <-goOn }}
	s, err := etcdlock.NewSession(testCtx(t), client, etcdlock.WithHooks(slow, otellock.Hooks(otellock.WithTracerProvider(provider))))
	require.NoError(t, err)
	ctx, caller := provider.Tracer("test").Start(testCtx(t), "request")
	h, err := etcdlock.NewMutex(s, "a").Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, h.Unlock(ctx))
	caller.End()
	close(goOn)
	require.NoError(t, s.Close())
	got := spans.GetSpans()
	require.Equal(t, []string{"etcdlock.wait granted Unset", "etcdlock.hold released Unset"}, summary(got))
	for _, span := range got[len(got)-2:] { // behind the caller's
		require.Equal(t, caller.SpanContext().SpanID(), span.Parent.SpanID())
		require.False(t, span.EndTime.After(got[0].EndTime), "the times must be those of the events")
	}
}

// A caller whose span is not sampled gets no spans, and a span of another process is a
// parent like any other.
func TestSpans_Sampling(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	provider, spans := tracing()
	s := newSession(t, client, provider)
	lock := func(ctx context.Context) {
		h, err := etcdlock.NewMutex(s, "a").Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
	}
	remote := func(flags trace.TraceFlags) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags, Remote: true})
	}
	lock(trace.ContextWithRemoteSpanContext(testCtx(t), remote(0)))
	never, _ := tracing(sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, caller := never.Tracer("test").Start(testCtx(t), "request")
	lock(ctx)
	caller.End()
	lock(trace.ContextWithRemoteSpanContext(testCtx(t), remote(trace.FlagsSampled)))
	require.NoError(t, s.Close())
	require.Len(t, spans.GetSpans(), 2, "of the last one only")
	for _, span := range spans.GetSpans() {
		require.Equal(t, trace.SpanID{2}, span.Parent.SpanID())
		require.Empty(t, span.Links)
	}
}

// Without an option, and with a nil provider, spans go to the global one.
func TestSpans_GlobalProvider(t *testing.T) {
	was := otel.GetTracerProvider()
	provider, spans := tracing()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(was)
	for _, opts := range [][]otellock.Option{nil, {otellock.WithTracerProvider(nil)}} {
		spans.Reset()
		s, err := etcdlock.NewSession(testCtx(t), etcdtest.Start(t).Client(t), etcdlock.WithHooks(otellock.Hooks(opts...)))
		require.NoError(t, err)
		_, err = etcdlock.NewMutex(s, "a").TryLock(testCtx(t))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.Len(t, spans.GetSpans(), 2)
	}
}

// The cause of a ctx is the caller's, and its text may be anything. An exporter drops a whole batch for one text that is not UTF-8.
func TestSpans_ErrorThatIsNotUTF8(t *testing.T) {
	provider, spans := tracing()
	hooks := otellock.Hooks(otellock.WithTracerProvider(provider))
	err := fmt.Errorf("%w: order \xff", context.DeadlineExceeded)
	hooks.Abandoned(testCtx(t), etcdlock.AbandonedInfo{Acquisition: etcdlock.Acquisition{Name: "a"}, Err: err})
	got := spans.GetSpans()
	require.Len(t, got, 1)
	require.Equal(t, "context deadline exceeded: order \uFFFD", got[0].Status.Description)
}
