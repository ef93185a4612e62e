package etcdlock

import (
	"context"
	"iter"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// namesPage is how many keys ListNames reads at once.
const namesPage = 10000

// ListNames yields the names of all locks that have entries, holding or waiting, and whose names start
// with prefix, "" for all: each once, and a nested name, such as "a/b", before the name that it is nested
// in, "a". It goes by the keys alone: any key "<name>/<hex>" is an entry of that name, no matter who wrote
// it.
//
// It costs a linearizable read of keys for each ten thousand keys that start with prefix, made when the
// loop comes so far, and holds no more of them at a time. Those reads show different revisions: a name
// whose entries come or go during the loop may be missed or not, all others are yielded.
//
// It blocks while etcd does not answer, until ctx ends. An error is the last thing that is yielded;
// without one, the loop has seen all.
func (c *Client) ListNames(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ok := true
		err := c.usable()
		if err == nil {
			err = walkNames(ctx, etcd.NewClient(c.etcd), prefix, namesPage, func(name string) bool {
				ok = yield(name, nil)
				return ok
			})
		}
		if ok && err != nil {
			yield("", wrapNeeding("read", prefix, "list the names below", prefix, err))
		}
	}
}

func walkNames(ctx context.Context, client *etcd.Client, prefix string, page int64, yield func(string) bool) error {
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
