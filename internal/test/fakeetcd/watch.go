package fakeetcd

import (
	"context"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Watch is one that a client has opened, or asked for.
type Watch struct {
	From, To string // its range
	puts     bool   // it tells of them, too
	ch       chan clientv3.WatchResponse
	closed   bool
}

// Watches returns the watches that nobody has closed.
func (f *Server) Watches() (open []*Watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watches {
		if !w.closed {
			open = append(open, w)
		}
	}
	return open
}

// Lag has watches served by a member that is that many revisions behind when they are opened.
func (f *Server) Lag(revisions int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lag = revisions
}

// BreakWatches ends every watch with an error.
func (f *Server) BreakWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watches {
		if !w.closed {
			w.ch <- Response(0, clientv3.WatchResponse{Canceled: true})
			w.close()
		}
	}
}

// tell sends the deletions among events, and the puts if the watch tells of them.
func (w *Watch) tell(rev int64, events []*clientv3.Event) {
	var wr clientv3.WatchResponse
	for _, ev := range events {
		if (w.puts || ev.Type == clientv3.EventTypeDelete) && within(string(ev.Kv.Key), w.From, w.To) {
			wr.Events = append(wr.Events, ev)
		}
	}
	if len(wr.Events) > 0 && !w.closed {
		w.ch <- Response(rev, wr)
	}
}

// Response gives a response its header, which is a value in etcd's client 3.6 and a pointer in 3.7.
func Response(rev int64, wr clientv3.WatchResponse) clientv3.WatchResponse {
	switch h := any(&wr.Header).(type) {
	case **pb.ResponseHeader:
		*h = &pb.ResponseHeader{Revision: rev}
	case *pb.ResponseHeader:
		h.Revision = rev
	}
	return wr
}

func (w *Watch) close() {
	if !w.closed {
		w.closed = true
		close(w.ch)
	}
}

// Watch implements clientv3.Watcher. It begins at the current revision.
func (f *Server) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	filtered := reflect.ValueOf(op).FieldByName("filterPut").Bool() // clientv3 tells in no other way
	w := &Watch{From: key, To: string(op.RangeBytes()), puts: f.TellPuts && !filtered, ch: make(chan clientv3.WatchResponse, 1000)}
	err := f.call(ctx, "Watch", func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.Refuse != nil && f.Refuse(w) {
			w.close()
			return
		}
		f.watches = append(f.watches, w)
		at := max(1, f.rev-f.lag)
		w.ch <- Response(at, clientv3.WatchResponse{Created: true})
		for rev := at + 1; rev <= f.rev; rev++ { // what that member gets to see yet
			w.tell(rev, f.events[rev])
		}
	})
	stop := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		w.close()
	}
	if err != nil {
		stop()
	} else {
		context.AfterFunc(ctx, stop)
	}
	return w.ch
}

// RequestProgress is answered by every watch.
func (f *Server) RequestProgress(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watches {
		if !w.closed {
			w.ch <- Response(f.rev-f.lag, clientv3.WatchResponse{})
		}
	}
	return nil
}
