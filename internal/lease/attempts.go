// From when the answer to a renewal counts.

package lease

import (
	"slices"
	"time"
)

// attempts are when those attempts to renew were sent that have no answer, in order.
//
// On a stream that leads to etcd a reply is that to the attempt that was sent on it, and counts from that. Behind `etcd
// grpc-proxy` it is not. The proxy renews the lease when the first of its clients' streams asks for it, and gives
// etcd's reply to all streams that are waiting then. So the reply to an attempt may be that to an earlier attempt, and
// etcd may have renewed the lease before the later one was sent. What I4 asks for is a time before the proxy's own
// request. That is at the latest when the earliest attempt was sent that had no answer when this one was sent:
//
//   - The proxy asks etcd only because of an attempt, and gets etcd's replies in the order in which it has asked. If an
//     attempt has its answer, the requests because of it and of those before it are answered, and what comes to a later
//     attempt is not the reply to them.
//   - An attempt whose own answer never comes, since its stream broke or its reply was lost, may yet have made the proxy
//     ask. The reply may come to the next attempt. So the failed one stays here until an attempt that was sent later has
//     an answer. That answer counts from the failed one, and the next renewal, which is due at once then, from itself.
//   - An attempt that was never sent has made nobody ask.
//
// What this can't see is that the proxy asks again each half second while etcd does not answer it. Of several
// answers that are that late the proxy may give a later one to the next attempt: see doc.go.
type attempts []time.Time

// send notes an attempt, and returns from when its answer counts if it may be shared.
func (a *attempts) send(sent time.Time) (from time.Time) {
	*a = append(*a, sent)
	return (*a)[0]
}

// answered notes that the attempt that was sent then has an answer.
func (a *attempts) answered(sent time.Time) {
	*a = slices.DeleteFunc(*a, func(t time.Time) bool { return !t.After(sent) })
}

// notSent notes that it was never sent.
func (a *attempts) notSent(sent time.Time) {
	*a = slices.DeleteFunc(*a, sent.Equal)
}
