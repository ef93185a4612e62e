package etcdlock

import (
	"context"
	"errors"
	"iter"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// namesPage is how many keys Names reads at once.
const namesPage = 10000

// Names yields the names of all locks that have entries, holding or waiting, and
// whose names start with prefix, "" for all: each once, and a nested name, such
// as "a/b", before the one that it is nested in, "a". It goes by the keys alone:
// any key "<name>/<hex>" is an entry of that name, whoever wrote it.
//
// It costs a linearizable read of keys for each ten thousand keys that start
// with prefix, made when the loop comes so far, and holds no more of them at a
// time. Those reads show different revisions: a name whose entries come or go
// during the loop may be missed or not, all others are yielded.
//
// It blocks while etcd does not answer, until ctx ends. An error is the last
// thing that is yielded; without one, the loop has seen all.
func Names(ctx context.Context, client *clientv3.Client, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ok := true
		err := walkNames(ctx, client, prefix, namesPage, func(name string) bool {
			ok = yield(name, nil)
			return ok
		})
		if ok && err != nil {
			yield("", wrapNeeding("read", prefix, "list the names below", prefix, err))
		}
	}
}

func walkNames(ctx context.Context, client *clientv3.Client, prefix string, page int64, yield func(string) bool) error {
	if client == nil {
		return errors.New("the client is nil: make one with clientv3.New")
	}
	var s nameScan
	from, to := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		from, to = "\x00", "\x00"
	}
	for {
		var resp *clientv3.GetResponse
		err := retry(ctx, client, func(ctx context.Context) (err error) {
			resp, err = client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithKeysOnly(), clientv3.WithLimit(page))
			return err
		})
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			key := string(kv.Key)
			if !s.leave(key, yield) {
				return nil
			}
			if name, ok := nameOf(key); ok && strings.HasPrefix(name, prefix) {
				s.enter(name)
			}
		}
		if !resp.More {
			s.leave("", yield)
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// nameOf is the name of the lock of which key is an entry.
func nameOf(key string) (name string, ok bool) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", false
	}
	name = key[:i]
	return name, checkName(name) == nil && kindOf(name, key) != foreign
}

// nameScan finds the names among keys that come in key order. The keys of a
// name need not be neighbours: those of names nested in it lie between. But all
// lie below "<name>/", so that a name can come again only until the keys have
// left that. The names for which they have not are nested in each other,
// so there are no more of them than a key has slashes.
type nameScan struct{ open []string }

// leave yields the names that have no key from key on, "" for the end of all;
// false: the consumer has had enough.
func (s *nameScan) leave(key string, yield func(string) bool) bool {
	for n := len(s.open) - 1; n >= 0; n-- {
		name := s.open[n]
		if key != "" && strings.HasPrefix(key, name+"/") {
			break
		}
		s.open = s.open[:n]
		if !yield(name) {
			return false
		}
	}
	return true
}

// enter notes a name; the last one noted is the same, or one that it is nested
// in, or none.
func (s *nameScan) enter(name string) {
	if n := len(s.open); n == 0 || s.open[n-1] != name {
		s.open = append(s.open, name)
	}
}
