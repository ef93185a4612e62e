// The names of the locks that have entries.

package inspect

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// NamesPage is how many keys Names reads at once.
const NamesPage = 10000

// Names calls yield with the name of each lock that has entries and whose name starts with prefix, until yield
// returns false. It reads page keys at once, or fewer if the reply is too large for the client.
func Names(ctx context.Context, client *etcd.Client, prefix string, page int64, yield func(string) bool) error {
	var scan keyspace.Scan
	withPrefix := func(name string) bool { return !strings.HasPrefix(name, prefix) || yield(name) }
	from, to := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		from, to = "\x00", "\x00"
	}
	for {
		resp, _, err := etcd.Do(ctx, client, etcd.Policy{}, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(page))
		})
		if etcd.ReplyTooLarge(err) && page > 1 {
			page /= 2
			continue
		}
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			if !scan.Next(string(kv.Key), withPrefix) {
				return nil
			}
		}
		if !resp.More {
			scan.End(withPrefix)
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
