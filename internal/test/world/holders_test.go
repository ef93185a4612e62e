// What must be so of those that have a lock.

package world

import (
	"bytes"
	"context"
	"errors"
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
	ctx        context.Context // its Context, nil if nobody has asked for it
}

func (h *hold) String() string { return fmt.Sprintf("%v@%d of %s", h.Keys(), h.Token(), h.p.id) }

// looksAt takes note of the Context of the hold.
func (h *hold) looksAt(ctx context.Context) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	h.ctx = ctx
}

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
	p.aloneLocked(own)
	p.inTurnLocked(own)
	p.entitledLocked(own)
	p.holds[own] = true
	p.of[h.Session()] = append(p.of[h.Session()], own)
	return own
}

// shared is a name that both holds have, and only one of them may have; "" if there is none.
func (h *hold) shared(o *hold) string {
	for name, writes := range h.names {
		if others, both := o.names[name]; both && (writes || others) {
			return name
		}
	}
	return ""
}

// aloneLocked fails the world if another holder has what h excludes (I1). If somebody has removed an entry, its holder may not have
// been told yet when another session has the lock. A session tells its own holder first.
func (w *world) aloneLocked(h *hold) {
	for o := range w.holds {
		told := o.Session() == h.Session() || !w.brokenLocked(o.Held) && !w.brokenLocked(h.Held)
		if name := h.shared(o); name != "" && told && o.Err() == nil && h.Err() == nil {
			w.failLocked("%s has two holders: %v and %v (I1)", name, h, o)
		}
	}
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

// inEtcd are the keys of the hold that are in etcd.
func (h *hold) inEtcd() (keys []string) {
	for _, known := range h.Keys() {
		name := nameOf(known)
		for _, kv := range h.p.f.Keys(name + "/") {
			if key := string(kv.Key); nameOf(key) == name && kv.CreateRevision == h.Token() && kv.Lease == int64(h.Session().Lease()) {
				keys = append(keys, key)
			}
		}
	}
	return keys
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

// A removal is that of an entry.
type removal struct {
	turn   int    // its number among all removals; those of one revision have the same
	behind string // an entry of another lease that blocked it then
}

// removingLocked carries out a change that may remove entries.
func (w *world) removingLocked(change func()) {
	before := w.f.Keys("")
	change()
	w.turn++
	there := make(map[string]bool)
	for _, kv := range w.f.Keys("") {
		there[entryOf(string(kv.Key), kv.CreateRevision)] = true
	}
	for _, kv := range before {
		if entry := entryOf(string(kv.Key), kv.CreateRevision); kv.Lease != 0 && !there[entry] {
			w.gone[entry] = removal{w.turn, blocker(kv, before)}
		}
	}
}

// blocker is one of the keys that blocks kv and is of another lease, "" if there is none.
func blocker(kv *mvccpb.KeyValue, keys []*mvccpb.KeyValue) string {
	key := string(kv.Key)
	for _, o := range keys {
		other := string(o.Key)
		if o.Lease != 0 && o.Lease != kv.Lease && o.CreateRevision < kv.CreateRevision && nameOf(other) == nameOf(key) && (writes(other) || writes(key)) {
			return entryOf(other, o.CreateRevision)
		}
	}
	return ""
}

// writes reports whether a key is an exclusive one.
func writes(key string) bool { return key[len(nameOf(key))+1] != 'r' }

// entitledLocked fails the world if h can't have got the lock, since its entry was removed before (I1): while the entry of another
// session blocked it; or not after the entry of a hold of its own session which was lost, as such a hold hands nothing over.
func (w *world) entitledLocked(h *hold) {
	for _, key := range h.Keys() {
		gone, is := w.gone[entryOf(key, h.Token())]
		if !is {
			continue
		}
		if gone.behind != "" {
			w.failLocked("%v has the lock, and was removed while it waited for %s (I1)", h, gone.behind)
		}
		for _, o := range w.of[h.Session()] {
			i := slices.IndexFunc(o.Keys(), func(other string) bool { return nameOf(other) == nameOf(key) })
			if i < 0 || o.Token() > h.Token() || h.shared(o) == "" {
				continue
			}
			if before, is := w.gone[entryOf(o.Keys()[i], o.Token())]; is && before.turn >= gone.turn && errors.Is(o.Err(), etcdlock.ErrLost) {
				w.failLocked("%v was lost, and has handed the lock over to %v, which was removed already (I1)", o, h)
			}
		}
	}
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
		case put != nil && bytes.HasPrefix(put.Key, []byte(marks)):
			if may, told := w.marked[string(put.Key)]; told && !may {
				w.failLocked("a Txn has returned an error without ErrOutcomeUnknown, and is carried out: %s", put.Key)
			}
			w.marked[string(put.Key)] = true
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
