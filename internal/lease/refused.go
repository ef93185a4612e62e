// The rights on the keys that hang on a lease: etcd checks all of them for each request about the lease.

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// errRefused is in the error of a renewal or a revocation that etcd refuses for want of rights. With authentication etcd
// checks each key that hangs on a lease before it renews or revokes the lease, or puts a further key on it. So when a
// role loses the prefix of one lock that is held, the lease serves no lock any more, and will expire.
var errRefused = errors.New("etcd refuses the lease")

// refusedFor is how long etcd has to refuse all renewals before the use of the lease ends: a role may be changed in two steps, in
// one script, and each Lock that comes in between has the lease renewed at once.
const refusedFor = time.Second

// explained is err, or if err is for want of rights, errRefused with the key that is in the way. It does not wrap err: the
// refusal is not about the rights on the lock that the caller has asked for.
func (l *Lease) explained(ctx context.Context, err error) error {
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	key := l.InTheWay(ctx)
	if key == "" {
		return fmt.Errorf("%w: the client has no right to write one of the keys that hang on it: %s", errRefused, err.Error())
	}
	return fmt.Errorf("%w: the client has no right to write the key %q, which hangs on it: %s", errRefused, key, err.Error())
}

// refused takes note of the outcome of a renewal, and ends the use of the lease if etcd has refused all renewals for refusedFor.
func (l *Lease) refused(err error) {
	l.mu.Lock()
	refused := errors.Is(err, errRefused)
	switch {
	case err == nil:
		l.refusedSince = time.Time{}
	case refused && l.refusedSince.IsZero():
		l.refusedSince = time.Now()
	}
	end := refused && time.Since(l.refusedSince) >= refusedFor
	l.mu.Unlock()
	if end {
		l.End(fmt.Errorf("%w: %w", l.Expired, err), err.Error())
	}
}

// refusedInstead is err. But if etcd has denied permission, refusedInstead renews the lease to find out why. If etcd refuses the
// renewals too, until the use of the lease has ended, the error is the cause of Ctx. If etcd refuses them only for a while, passed is
// true: etcd may have refused the request because of the lease, and not for its own sake.
func (l *Lease) refusedInstead(ctx context.Context, err error) (passed bool, _ error) {
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return false, err
	}
	refused, failed := l.refresh(ctx)
	if failed != nil && l.Ctx.Err() != nil {
		return false, context.Cause(l.Ctx)
	}
	return refused && failed == nil, err
}

// manyKeys is the least number of keys that the log speaks of.
const manyKeys = 1000

// HasKeys takes note of how many keys hang on the lease. If they are many and the client has a password, the log has a line
// for it: at each put of a further key etcd checks the rights on all of them. See docs/capacity.md.
func (l *Lease) HasKeys(n int) {
	if n < manyKeys || l.Client.Username == "" {
		return
	}
	l.manyKeys.Do(func() {
		l.Outages.Log.Warn("etcd checks the rights on all keys of a session at each lock: share the locks among more sessions", "lease", l.String(), "keys", n)
	})
}
