package etcdtest

import (
	"context"
	"errors"
	"path"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// ErrDrop is returned by a stream hook to remove the message from the stream.
var ErrDrop = errors.New("etcdtest: drop this message")

// A hook is the function that was given to one of the On methods, or nil.
type hook[M any] func(ctx context.Context, m M) error

type hooks struct {
	open              func(ctx context.Context, method string) error
	watchRequest      hook[*pb.WatchRequest]
	watchResponse     hook[*pb.WatchResponse]
	keepAliveRequest  hook[*pb.LeaseKeepAliveRequest]
	keepAliveResponse hook[*pb.LeaseKeepAliveResponse]
}

// OnStream calls f before a stream is opened; method is Watch or LeaseKeepAlive, for
// example. The stream opens if f returns nil; otherwise the client gets f's error. As
// with the other hooks, f replaces the hook that was set before, and nil removes it.
func (t *Tap) OnStream(f func(ctx context.Context, method string) error) {
	t.setHook(func(h *hooks) { h.open = f })
}

// OnWatchRequest calls f for each message that the client sends on a Watch stream. f may
// change the message. The message is held back until f returns; ctx ends with the
// stream. If f returns nil, the message is sent; on [ErrDrop] it is removed from the
// stream; any other error breaks the stream, and the client gets that error. After
// [ErrTransport] the client opens another stream and resumes; after io.EOF it closes its
// watchers.
func (t *Tap) OnWatchRequest(f func(ctx context.Context, m *pb.WatchRequest) error) {
	t.setHook(func(h *hooks) { h.watchRequest = f })
}

// OnWatchResponse is like OnWatchRequest for the messages that the server sends: events,
// and notices that a watcher was created or cancelled.
func (t *Tap) OnWatchResponse(f func(ctx context.Context, m *pb.WatchResponse) error) {
	t.setHook(func(h *hooks) { h.watchResponse = f })
}

// OnKeepAliveRequest is like OnWatchRequest for the renewals that the client sends.
func (t *Tap) OnKeepAliveRequest(f func(ctx context.Context, m *pb.LeaseKeepAliveRequest) error) {
	t.setHook(func(h *hooks) { h.keepAliveRequest = f })
}

// OnKeepAliveResponse is like OnWatchRequest for the server's replies to renewals.
func (t *Tap) OnKeepAliveResponse(f func(ctx context.Context, m *pb.LeaseKeepAliveResponse) error) {
	t.setHook(func(h *hooks) { h.keepAliveResponse = f })
}

func (t *Tap) setHook(set func(*hooks)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	set(&t.hooks)
}

func (t *Tap) currentHooks() hooks {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hooks
}

func (t *Tap) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, fullMethod string,
	streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	method := path.Base(fullMethod)
	t.mu.Lock()
	t.calls[method]++
	open := t.hooks.open
	t.mu.Unlock()
	if open != nil {
		if err := open(ctx, method); err != nil {
			return nil, err
		}
	}
	// Cancelling ctx ends the stream on the server as well when a hook breaks it.
	ctx, cancel := context.WithCancel(ctx)
	s, err := streamer(ctx, desc, cc, fullMethod, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &tappedStream{ClientStream: s, tap: t, cancel: cancel}, nil
}

type tappedStream struct {
	grpc.ClientStream
	tap    *Tap
	cancel context.CancelFunc
}

// SendMsg implements [grpc.ClientStream].
func (s *tappedStream) SendMsg(m any) error {
	var err error
	switch m := m.(type) {
	case *pb.WatchRequest:
		if create := m.GetCreateRequest(); create != nil {
			s.tap.created(create)
		}
		err = call(s.Context(), s.tap.currentHooks().watchRequest, m)
	case *pb.LeaseKeepAliveRequest:
		err = call(s.Context(), s.tap.currentHooks().keepAliveRequest, m)
	}
	switch {
	case errors.Is(err, ErrDrop):
		return nil
	case err != nil:
		s.cancel()
		return err
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements [grpc.ClientStream].
func (s *tappedStream) RecvMsg(m any) error {
	for {
		err := s.ClientStream.RecvMsg(m)
		if err == nil {
			switch m := m.(type) {
			case *pb.WatchResponse:
				err = call(s.Context(), s.tap.currentHooks().watchResponse, m)
			case *pb.LeaseKeepAliveResponse:
				err = call(s.Context(), s.tap.currentHooks().keepAliveResponse, m)
			}
		}
		if errors.Is(err, ErrDrop) {
			continue
		}
		if err != nil {
			s.cancel()
		}
		return err
	}
}

func (t *Tap) created(r *pb.WatchCreateRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.creates = append(t.creates, clone(r))
}

func call[M any](ctx context.Context, h hook[M], m M) error {
	if h == nil {
		return nil
	}
	return h(ctx, m)
}
