// What must be so of the requests that write entries: "Several names in one request" in docs/protocol.md.

package world

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A line is the entries of a name that a session has sent.
type line struct {
	at     time.Time // when the last one was sent
	latest time.Time // when the last call was made whose entry was sent at that time
	before time.Time // likewise, of the entries that were sent earlier
	nonces map[string]bool
}

// sent looks at a request that is sent.
func (w *world) sent(r *pb.TxnRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	commands := []*pb.TxnRequest{r}
	if len(r.Compare) == 0 && len(r.Success) > 0 && r.Success[0].GetRequestTxn() != nil {
		commands = nil
		for _, op := range r.Success {
			commands = append(commands, op.GetRequestTxn())
		}
	}
	names := make(map[string]bool)
	for _, c := range commands {
		if removes(c.Success) && len(names) > 0 {
			w.failLocked("a request removes an entry after it has written one: %v", r)
		}
		for _, name := range written(c) {
			if names[name] {
				w.failLocked("a request writes two entries of %s: %v", name, r)
			}
			names[name] = true
			w.leavesInTurnLocked(c, name)
		}
	}
}

// written are the names whose entries a command writes.
func written(c *pb.TxnRequest) (names []string) {
	for _, op := range c.Success {
		if put := op.GetRequestPut(); put.GetLease() != 0 && creates(c, put) && !slices.Contains(names, nameOf(string(put.Key))) {
			names = append(names, nameOf(string(put.Key)))
		}
	}
	return names
}

// creates reports whether a command puts a key that is not there.
func creates(c *pb.TxnRequest, put *pb.PutRequest) bool {
	return slices.ContainsFunc(c.Compare, func(is *pb.Compare) bool {
		return string(is.Key) == string(put.Key) && is.Target == pb.Compare_CREATE && is.GetCreateRevision() == 0
	})
}

// tries reports whether a command is of a Try, which waits for nobody: it compares that the queue is empty, or looks at what came since
// the Try had read the queue.
func tries(c *pb.TxnRequest) bool {
	return slices.ContainsFunc(c.Compare, func(is *pb.Compare) bool { return len(is.RangeEnd) > 0 }) ||
		slices.ContainsFunc(c.Success, func(op *pb.RequestOp) bool { return op.GetRequestRange().GetMinCreateRevision() > 0 })
}

// leavesInTurnLocked fails the world if an entry of a session is sent after that of a later call of the session. The value of an entry says
// when its call was made; of a raw value nobody knows.
func (w *world) leavesInTurnLocked(c *pb.TxnRequest, name string) {
	var value struct {
		Queued time.Time
		Nonce  string
	}
	i := slices.IndexFunc(c.Success, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
	if json.Unmarshal(c.Success[i].GetRequestPut().Value, &value) != nil || value.Nonce == "" || tries(c) {
		return
	}
	session, _, _ := strings.Cut(value.Nonce, ".")
	l := w.lines[session+" "+name]
	if l == nil {
		l = &line{nonces: make(map[string]bool)}
		w.lines[session+" "+name] = l
	}
	if l.nonces[value.Nonce] {
		return // it is sent again
	}
	l.nonces[value.Nonce] = true
	if now := time.Now(); now.After(l.at) {
		if l.latest.After(l.before) {
			l.before = l.latest
		}
		l.at, l.latest = now, time.Time{}
	}
	if value.Queued.Before(l.before) {
		w.failLocked("the call of %v for %s is sent after that of %v", value.Queued, name, l.before)
	}
	if value.Queued.After(l.latest) {
		l.latest = value.Queued
	}
}
