// How much a request may carry: what the session has learnt from refusals.

package sender

import (
	"cmp"
	"errors"
	"slices"
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
	refused Recent
	alarm   bool // etcd has refused an enqueue because of an alarm, and has carried out none by itself since
}

// alone reports whether a command shares its request with no other. While etcd is full, no enqueue does: etcd 3.6 carries
// out a put in a nested transaction all the same, so locks would be granted and refused by turns. Nor does one that puts much:
// etcd may refuse it for that, and then there would seem to be too many commands in its request.
func (l *limits) alone(c *Command) bool {
	return l.most == 1 || c.apart || c.ops() > cmp.Or(l.ops, maxOps) || c.bytes() > maxBytes || l.alarm && c.Enqueue || l.refused.Has(c.Names)
}

// answeredAlone takes note of err, the error of a command that went by itself, nil if there is none. If etcd is full, or the
// lease is gone, the error says nothing of the command's names.
func (l *limits) answeredAlone(c *Command, err error) {
	if c.Enqueue && (err == nil || etcd.Alarm(err)) {
		l.alarm = err != nil
	}
	if err != nil && etcd.Refused(err) && !etcd.Alarm(err) && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.refused.Add(c.Names, refusedFor)
	}
}

// tooMany takes note that etcd, or a limit of the client, has refused commands in one request for their number or size. Etcd
// bounds the operations of the request, which are its commands, and those of each command alike. So if a command has more than the
// request has commands, that command goes by itself from now on, and so do all that have as many operations.
func (l *limits) tooMany(b []*Command, err error) {
	largest := slices.MaxFunc(b, func(c, d *Command) int { return cmp.Compare(c.ops(), d.ops()) }).ops()
	if largest > len(b) && errors.Is(err, rpctypes.ErrTooManyOps) {
		l.ops = largest - 1
		return
	}
	l.most = max(1, min(l.most, len(b)/2))
}
