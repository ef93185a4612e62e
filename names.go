// The names of the locks that are in use.

package etcdlock

import (
	"context"
	"iter"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/inspect"
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
			err = inspect.Names(ctx, etcd.NewClient(c.etcd), prefix, namesPage, func(name string) bool {
				ok = yield(name, nil)
				return ok
			})
		}
		if ok && err != nil {
			yield("", wrapNeeding("read", prefix, "list the names below", prefix, err))
		}
	}
}
