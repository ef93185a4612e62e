// How much a request may carry: what the session has learnt from refusals.

package sender

import (
	"cmp"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// refusedFor is for how long the commands of a name share no request, after etcd has refused such a command that went by
// itself: etcd would refuse the whole request, and it would be taken apart.
const refusedFor = 10 * time.Second

// limits is what etcd has refused before.
type limits struct {
	most    int // commands in a request
	ops     int // the most operations of a command that shares its request, if etcd allows less than maxOps
	bytes   int // the most that a request of several commands puts, if etcd takes less than maxBytes
	refused Recent
	alarm   bool // etcd has refused an enqueue because of an alarm, and has carried out none by itself since
}

// alone reports whether a command shares its request with no other. While etcd is full, no enqueue does: etcd 3.6 carries
// out a put in a nested transaction all the same, so locks would be granted and refused by turns. Nor does one that puts more than a
// request of several may: take relies on that, or such a command would never be sent.
func (l *limits) alone(c *Command) bool {
	return l.most == 1 || c.apart || c.ops() > cmp.Or(l.ops, maxOps) || c.bytes() > l.size() || l.alarm && c.enqueues() || l.refused.Has(c.Names)
}

// size is the most that a request of several commands puts.
func (l *limits) size() int { return cmp.Or(l.bytes, maxBytes) }

// answeredAlone takes note of err, the error of a command that went by itself, nil if there is none. If etcd is full, or the
// lease is gone, the error says nothing of the command's names.
func (l *limits) answeredAlone(c *Command, err error) {
	if c.enqueues() && (err == nil || etcd.Alarm(err)) {
		l.alarm = err != nil
	}
	if err != nil && etcd.Refused(err) && !etcd.Alarm(err) && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.refused.Add(c.Names, refusedFor)
	}
}

// tooMany takes note that etcd, or a limit of the client, has refused commands in one request for their number or size. Etcd
// bounds the operations of the request, which are its commands, and those of each command alike. So if a command has more than the
// request has commands, that command goes by itself from now on, and so do all that have as many operations. If the request was
// too large, requests put half of that from now on, unless it put so little that the number of its commands made it large.
func (l *limits) tooMany(b []*Command, err error) {
	ops, bytes := 0, 0
	for _, c := range b {
		ops, bytes = max(ops, c.ops()), bytes+c.bytes()
	}
	tooLarge := errors.Is(err, rpctypes.ErrRequestTooLarge) || etcd.RequestTooLarge(err)
	switch {
	case ops > len(b) && errors.Is(err, rpctypes.ErrTooManyOps):
		l.ops = ops - 1
	case tooLarge && bytes > minBytes:
		l.bytes = bytes / 2
	default:
		l.most = max(1, min(l.most, len(b)/2))
	}
}
