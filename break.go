package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Break removes an entry from its queue: that very acquisition, and no other of
// the same owner, lease or key. It is for a lock that does not come back by
// itself: its holder hangs and renews its lease all the same, or the entry has
// no lease. e is what Inspect or Watch showed; of it Name, Key, SharedKey and
// Token count.
//
// A waiter then gets ErrLost from Lock. A holder's Context ends with ErrLost
// within 500 ms, if it has etcd and uses it; see [Held.Context]. The next entry is
// granted at once, so until then two may be in the section: what matters must be
// protected by [Held.Token] or [Held.Txn].
//
// It blocks until etcd has confirmed, one request and one commit, or ctx ends;
// then the entry may be gone or not. ErrNotFound says that it was gone already:
// given back, broken or expired. Where a reply was lost, and the request
// repeated, nobody can tell by whom the entry was removed, and Break returns nil.
func Break(ctx context.Context, client *clientv3.Client, e Entry) error {
	return wrap("break an entry of", e.Name, breakEntry(ctx, client, e))
}

func breakEntry(ctx context.Context, client *clientv3.Client, e Entry) error {
	if err := checkLook(client, e.Name); err != nil {
		return err
	}
	keys := []string{e.Key}
	if e.SharedKey != "" {
		keys = append(keys, e.SharedKey)
	}
	ops := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		// A token of 0 would compare with keys that do not exist.
		if kindOf(e.Name, key) == foreign || e.Token <= 0 {
			return fmt.Errorf("key %q with token %d is no entry: take one from Inspect or Watch", key, e.Token)
		}
		// Each on its own: a downgrade may have removed the first meanwhile.
		is := clientv3.Compare(clientv3.CreateRevision(key), "=", e.Token)
		ops[i] = clientv3.OpTxn([]clientv3.Cmp{is}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	}
	found, repeated := false, false
	err := retry(ctx, client, func(ctx context.Context) error {
		resp, err := client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			repeated = repeated || !refused(err)
			return err
		}
		for _, r := range resp.Responses {
			found = found || r.GetResponseTxn().Succeeded
		}
		return nil
	})
	if err == nil && !found && !repeated {
		err = fmt.Errorf("%w: %s with token %d", ErrNotFound, e.Key, e.Token)
	}
	return err
}
