// How much a request may carry: what the session has learnt from refusals.

package sender

import (
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
	refused Recent
	alarm   bool // etcd has refused an enqueue because of an alarm, and has carried out none by itself since
}

// alone reports whether a command shares its request with no other. While etcd is full, no enqueue does: etcd 3.6 carries
// out a put in a nested transaction all the same, so locks would be granted and refused by turns.
func (l *limits) alone(c *Command) bool {
	return l.most == 1 || c.apart || c.ops() > maxOps || l.alarm && c.Enqueue || l.refused.Has(c.Names)
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

// tooMany takes note that etcd, or a limit of the client, has refused n commands in one request for their number.
func (l *limits) tooMany(n int) { l.most = max(1, min(l.most, n/2)) }
