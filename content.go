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
	Name    string
	Rev     int64
	Entries map[string]entryKey // by key
	Foreign map[string]struct{}
}

// entryKey is a key of an entry.
type entryKey struct {
	Rev   int64 // of its creation
	Lease int64
	Value string
}

// contentPage is how many keys are read at once.
const contentPage = 1000

// readContent reads the present, linearizably, in pages of one revision.
func readContent(ctx context.Context, client *clientv3.Client, name string) (*content, error) {
	for {
		c := &content{Name: name, Entries: make(map[string]entryKey), Foreign: make(map[string]struct{})}
		err := c.read(ctx, client)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return c, err
		}
		// The revision was compacted between two pages.
	}
}

func (c *content) read(ctx context.Context, client *clientv3.Client) error {
	from, to := prefixRange(c.Name)
	for {
		var resp *clientv3.GetResponse
		err := retry(ctx, client, func(ctx context.Context) (err error) {
			resp, err = client.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(contentPage), clientv3.WithRev(c.Rev))
			return err
		})
		if err != nil {
			return err
		}
		if c.Rev == 0 {
			c.Rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			c.Put(kv)
		}
		if !resp.More {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// put and remove report whether it is an entry that they change.
func (c *content) Put(kv *mvccpb.KeyValue) bool {
	key := string(kv.Key)
	if kindOf(c.Name, key) == foreign {
		c.Foreign[key] = struct{}{}
		return false
	}
	c.Entries[key] = entryKey{kv.CreateRevision, kv.Lease, string(kv.Value)}
	return true
}

func (c *content) Remove(key string) bool {
	delete(c.Foreign, key)
	_, was := c.Entries[key]
	delete(c.Entries, key)
	return was
}

// queue makes a Queue of it. The two keys of a write lock are one entry.
func (c *content) queue() Queue {
	q := Queue{Name: c.Name, Revision: c.Rev, Entries: make([]Entry, 0, len(c.Entries)), Foreign: slices.Sorted(maps.Keys(c.Foreign))}
	type writer struct {
		rev   int64
		lease string
	}
	writers := make(map[writer]int)                           // to the place in q.Entries
	for _, key := range slices.Sorted(maps.Keys(c.Entries)) { // exclusive ones come first
		k := c.Entries[key]
		lease, _, _ := strings.Cut(strings.TrimPrefix(key[len(c.Name)+1:], "r"), "-")
		w := writer{k.Rev, lease}
		read := kindOf(c.Name, key) == shared
		if i, ok := writers[w]; ok && read && q.Entries[i].SharedKey == "" {
			q.Entries[i].SharedKey = key
			continue
		}
		if !read {
			writers[w] = len(q.Entries)
		}
		e := Entry{Name: c.Name, Key: key, Token: k.Rev, Read: read, Lease: clientv3.LeaseID(k.Lease)}
		e.Owner, e.Queued = parseValue(k.Value)
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
		v, _ := blocker(c.Name, kindOf(c.Name, e.Key), e.Token, front, true)
		e.Holds = len(v.Blockers) == 0
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
