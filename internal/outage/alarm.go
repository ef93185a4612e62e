// What is known of etcd's alarms: etcd is full, or its members have different data. Then etcd answers, renews leases, and
// refuses every entry and every lease. etcd may do the same to a client whose user was deleted or has another password.

package outage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// An Alarm says since when etcd refuses entries and leases, and which entry it refused last. An Alarm is never changed.
type Alarm struct {
	key   string // of the entry; "" if only leases were refused
	since time.Time
	told  bool // the log has a line of it; of a client that etcd does not know, there is another line: see Refused
}

// Alarm is what is known now, nil if etcd is not known to refuse anything. Ask it before the request that Answered is
// called for.
func (o *Outages) Alarm() *Alarm { return o.alarm.Load() }

// Answered is called with the answer to a request that etcd refuses while there is an alarm: a put of an entry with that key,
// or with "" a grant of a lease. before is the Alarm before the request was sent. The log has a line when an alarm begins, and
// one when etcd has taken such a request again; answers that come out of order make no more.
func (s *Source) Answered(before *Alarm, key string, err error) {
	switch all := s.All; {
	case etcd.RefusesAll(err):
		now := all.alarm.Load()
		a := &Alarm{key, time.Now(), etcd.Alarm(err)}
		if now != nil {
			*a = Alarm{cmp.Or(key, now.key), now.since, a.told || now.told}
		}
		// If another request has ended the alarm since this one was sent, or has told the log of the alarm now, that stays.
		if (now != nil || before == nil) && all.alarm.CompareAndSwap(now, a) && a.told && (now == nil || !now.told) {
			// As text: it is not the error of a call that goes on.
			s.Log.Warn("etcd refuses new locks", "endpoints", s.Client.Endpoints(), "error", err.Error())
		}
	case err == nil && before != nil && all.alarm.CompareAndSwap(before, nil) && before.told: // and nothing was refused since it was sent
		s.Log.Info("etcd takes new locks again", "lasted", time.Since(before.since))
	}
}

// Ready is what Client.Ready returns where a session lives: nil, or that etcd refuses entries now. While there is an
// alarm, and only then, Ready asks etcd, and blocks until etcd has answered, or ctx or the session ends.
//
// It asks with a transaction that writes nothing, since the comparison is never true. A member whose data is too large
// refuses the transaction before it looks at the comparison, and so does a member with an alarm (quotaKVServer, applierV3Capped, applierV3Corrupt in etcd
// 3.7.3). A read would not tell, and the alarms themselves are for root to read.
func (s *Source) Ready(ctx context.Context) error {
	a := s.All.Alarm()
	if a == nil || a.key == "" { // since the session was granted, nothing was refused
		return nil
	}
	_, _, err := etcd.Do(ctx, s.Client, etcd.Policy{Life: s.Life, Hedge: true}, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.Client.Txn(ctx, func(t clientv3.Txn) clientv3.Txn {
			return t.If(clientv3.Compare(clientv3.CreateRevision(a.key), "=", -1)).Then(clientv3.OpPut(a.key, ""))
		})
	})
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		err = nil // the right was taken away since; an alarm refuses before etcd looks for rights
	}
	s.Answered(a, a.key, err)
	if err != nil {
		err = fmt.Errorf("etcdlock: not ready, etcd has refused new locks: %w", err)
	}
	return err
}
