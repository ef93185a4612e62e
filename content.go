package etcdlock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// content is what lies below a lock's prefix at one revision, as somebody who
// only looks at the queue reads it. It is as large as the queue is.
type content struct {
	name    string
	rev     int64
	entries map[string]entryKey // by key
	foreign map[string]struct{}
}

// entryKey is a key of an entry.
type entryKey struct {
	rev   int64 // of its creation
	lease int64
	value string
}

// contentPage is how many keys are read at once.
const contentPage = 1000

// readContent reads the present, linearizably, in pages of one revision.
func readContent(ctx context.Context, client *clientv3.Client, name string) (*content, error) {
	for {
		c := &content{name: name, entries: make(map[string]entryKey), foreign: make(map[string]struct{})}
		err := c.read(ctx, client)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return c, err
		}
		// The revision was compacted between two pages.
	}
}

func (c *content) read(ctx context.Context, client *clientv3.Client) error {
	from, to := prefixRange(c.name)
	for {
		var resp *clientv3.GetResponse
		err := persist(ctx, client, func(ctx context.Context) (err error) {
			resp, err = client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(contentPage), clientv3.WithRev(c.rev))
			return err
		})
		if err != nil {
			return err
		}
		if c.rev == 0 {
			c.rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			c.put(kv)
		}
		if !resp.More {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// put and remove report whether it is an entry that they change.
func (c *content) put(kv *mvccpb.KeyValue) bool {
	key := string(kv.Key)
	if kindOf(c.name, key) == foreign {
		c.foreign[key] = struct{}{}
		return false
	}
	c.entries[key] = entryKey{kv.CreateRevision, kv.Lease, string(kv.Value)}
	return true
}

func (c *content) remove(key string) bool {
	delete(c.foreign, key)
	_, was := c.entries[key]
	delete(c.entries, key)
	return was
}

// queue makes a Queue of it. The two keys of a write lock are one entry.
func (c *content) queue() Queue {
	q := Queue{Name: c.name, Revision: c.rev, Entries: make([]Entry, 0, len(c.entries)), Foreign: slices.Sorted(maps.Keys(c.foreign))}
	type writer struct {
		rev   int64
		lease string
	}
	writers := make(map[writer]int)                           // to the place in q.Entries
	for _, key := range slices.Sorted(maps.Keys(c.entries)) { // exclusive ones come first
		k := c.entries[key]
		lease, _, _ := strings.Cut(strings.TrimPrefix(key[len(c.name)+1:], "r"), "-")
		w := writer{k.rev, lease}
		read := kindOf(c.name, key) == shared
		if i, ok := writers[w]; ok && read && q.Entries[i].SharedKey == "" {
			q.Entries[i].SharedKey = key
			continue
		}
		if !read {
			writers[w] = len(q.Entries)
		}
		e := Entry{Name: c.name, Key: key, Token: k.rev, Read: read, Lease: clientv3.LeaseID(k.lease)}
		e.Owner, e.Queued = parseValue(k.value)
		q.Entries = append(q.Entries, e)
	}
	slices.SortFunc(q.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Token, b.Token), strings.Compare(a.Key, b.Key))
	})
	// Nothing but the first entry and the first writer decides who has the lock:
	// an exclusive entry waits for any before it, a shared one for a writer.
	var front []queued
	for _, e := range q.Entries {
		if len(front) == 0 || !e.Read {
			front = append(front, queued{e.Key, e.Token})
		}
		if !e.Read {
			break
		}
	}
	for i := range q.Entries {
		e := &q.Entries[i]
		v, _ := blocker(c.name, kindOf(c.name, e.Key), e.Token, front, true)
		e.Holds = len(v.blockers) == 0
	}
	return q
}

// parseValue reads what entryValue writes. Others leave the value empty, or
// write what they like.
func parseValue(value string) (owner string, when time.Time) {
	var v struct {
		Owner  string    `json:"owner"`
		Queued time.Time `json:"queued"`
	}
	if json.Unmarshal([]byte(value), &v) != nil {
		return "", time.Time{}
	}
	return v.Owner, v.Queued
}
