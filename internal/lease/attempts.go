// The time from which the answer to a renewal counts.

package lease

import (
	"slices"
	"time"
)

// attempts are the times at which the unanswered attempts to renew were sent, in order.
//
// On a stream that leads to etcd, a reply answers the attempt that was sent on this stream, and counts from when that
// attempt was sent. Behind `etcd grpc-proxy` it may answer an earlier attempt. The proxy renews the lease when the first of
// its clients' streams asks for it, and gives etcd's reply to all streams that wait then. So etcd may have renewed the lease
// before the later attempt was sent. I4 (see Record) needs a time before the proxy's own request. The time at which the
// earliest attempt was sent that has no answer yet is such a time:
//
//   - The proxy asks etcd only because of an attempt, and gets etcd's replies in the order of its requests. If an attempt
//     has its answer, the proxy's requests for this attempt and for all earlier ones are answered. No later attempt gets
//     the replies to these requests.
//   - An attempt may never get its answer, since its stream broke or its reply was lost. It may yet have made the proxy
//     ask, and the reply may come to the next attempt. So the failed attempt stays here until an attempt that was sent
//     later has an answer. That answer counts from the failed attempt. The next renewal is due at once then, and counts
//     from itself.
//   - An attempt that was never sent has made nobody ask.
//
// One case stays unseen. While etcd does not answer, the proxy asks again each half second. If several of etcd's answers
// come late, the proxy may give a later one of them to the next attempt, whose deadline is too late then: see the
// comment of package etcdlock.
type attempts []time.Time

// send notes an attempt, and returns the time from which its answer counts, if the answer may be shared.
func (a *attempts) send(sent time.Time) (from time.Time) {
	*a = append(*a, sent)
	return (*a)[0]
}

// answered notes that the attempt which was sent at this time has an answer.
func (a *attempts) answered(sent time.Time) {
	*a = slices.DeleteFunc(*a, func(t time.Time) bool { return !t.After(sent) })
}

// notSent notes that the attempt of this time was never sent.
func (a *attempts) notSent(sent time.Time) {
	*a = slices.DeleteFunc(*a, sent.Equal)
}
