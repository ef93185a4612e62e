// What must be so of those that have a lock.

package world

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock"
)

// A hold is a Held, as its process sees it.
type hold struct {
	*etcdlock.Held
	p          *process
	names      map[string]bool // true: it excludes everybody
	left       int             // how often somebody of the process was about to release it
	downgrades bool            // a user may downgrade it
}

func (h *hold) String() string { return fmt.Sprintf("%v@%d of %s", h.Keys(), h.Token(), h.p.id) }

// granted is called when a process has a hold.
func (p *process) granted(h *etcdlock.Held, names map[string]bool) *hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &hold{Held: h, p: p, names: names}
	if p.dead {
		return own
	}
	p.took++
	p.noteLocked("%v is held", own)
	for o := range p.holds {
		for name, writes := range names {
			if others, both := o.names[name]; both && (writes || others) && o.Err() == nil && h.Err() == nil && !p.brokenLocked(o.Held) && !p.brokenLocked(h) {
				p.failLocked("%s has two holders: %v and %v (I1)", name, own, o)
			}
		}
	}
	p.inTurnLocked(own)
	p.holds[own] = true
	return own
}

// A mode is a way to have the lock of a name.
type mode struct {
	name   string
	writes bool
}

// inTurnLocked fails the world if an entry behind h, which h excludes, has had the lock before h. Nobody passes anybody, and no
// goroutine another one of its session. Two come out of turn and do no harm: a holder who has not been told yet that its entry was
// removed, and one who has adopted what the process before had released.
func (w *world) inTurnLocked(h *hold) {
	late := h.Err() != nil || w.brokenLocked(h.Held) || w.adopted[h.Token()]
	for name, writes := range h.names {
		for _, o := range []mode{{name, true}, {name, false}} {
			if token := w.latest[o]; token > h.Token() && (o.writes || writes) && !late {
				w.failLocked("%v was passed: token %d has had %s before", h, token, name)
			}
		}
		m := mode{name, writes}
		w.latest[m] = max(w.latest[m], h.Token())
	}
}

// leaves is called before a hold is released.
func (h *hold) leaves() {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if err := h.Err(); h.p.holds[h] && err != nil && h.Session().Err() == nil && !h.p.brokenLocked(h.Held) {
		h.p.failLocked("%v is lost, and nobody has removed it: %v", h, err)
	}
	h.p.noteLocked("%v is released", h)
	h.left++
	delete(h.p.holds, h)
}

// brokenLocked reports whether somebody has removed the entry of a hold.
func (w *world) brokenLocked(h *etcdlock.Held) bool {
	return slices.ContainsFunc(h.Keys(), func(key string) bool { return w.removed[entryOf(key, h.Token())] })
}

// fencedLocked looks whether a guarded write came after that of a later holder. Such a write reads first what it replaces.
func (w *world) fencedLocked(r *pb.TxnRequest, resp *pb.TxnResponse) {
	if !resp.Succeeded {
		return
	}
	before := int64(0)
	for i, op := range r.Success {
		put := op.GetRequestPut()
		switch {
		case op.GetRequestTxn() != nil:
			w.fencedLocked(op.GetRequestTxn(), resp.Responses[i].GetResponseTxn())
		case op.GetRequestRange() != nil && bytes.HasPrefix(op.GetRequestRange().Key, []byte(data)):
			for _, kv := range resp.Responses[i].GetResponseRange().Kvs {
				before, _ = strconv.ParseInt(string(kv.Value), 10, 64)
			}
		case put != nil && bytes.HasPrefix(put.Key, []byte(data)):
			w.guarded++
			// Adopt may find an entry that the process before had released, and handed over, when it was killed.
			token, _ := strconv.ParseInt(string(put.Value), 10, 64)
			if token < before && !w.adopted[token] {
				w.failLocked("token %d has written %s after token %d", token, put.Key, before)
			}
			if !slices.ContainsFunc(w.f.Keys(""), func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == token }) {
				w.failLocked("token %d has written %s, and has no entry", token, put.Key)
			}
		}
	}
}
