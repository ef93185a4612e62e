package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// lockPaths are the prefixes of one lock and of its data in etcd.
type lockPaths struct {
	Name string `json:"name"` // the lock's
	Data string `json:"data"` // of the data that it protects
}

func (p lockPaths) counter() string  { return p.Data + "/counter" }
func (p lockPaths) sections() string { return p.Data + "/section/" }
func (p lockPaths) section(token int64) string {
	return p.sections() + strconv.FormatInt(token, 10)
}

// counterValue is what the lock protects. Each exclusive section reads it at its
// beginning and writes it, increased by one, at its end. The write compares nothing,
// so two sections at the same time would lose an update, and a check would see that.
type counterValue struct {
	N      int    `json:"n"`
	Token  int64  `json:"token"`
	Worker string `json:"worker"`
}

// sectionValue is what each section writes about itself, when it begins and again
// when it ends.
type sectionValue struct {
	Worker string `json:"worker"`
	Ended  bool   `json:"ended"`
	Read   int    `json:"read"` // the counter at the beginning; written at the end
	Last   int    `json:"last"` // the counter at the end, as a writer writes it or a reader reads it again
}

// section is the critical section of a worker. It lasts d. It reads and writes through
// the hold's Txn, which does nothing once the hold is gone.
func section(ctx context.Context, h *etcdlock.Held, j job, d time.Duration) error {
	counter, own := j.Lock.counter(), j.Lock.section(h.Token())
	v := sectionValue{Worker: j.Worker}
	first, err := h.Txn(ctx).Then(clientv3.OpPut(own, toJSON(v)), clientv3.OpGet(counter)).Commit()
	if err != nil {
		return err
	}
	c, err := parseCounter(first.Responses[1].GetResponseRange().Kvs)
	if err != nil {
		return err
	}
	v.Read = c.N

	work := time.NewTimer(d)
	defer work.Stop()
	select {
	case <-work.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.Done():
		return h.Err()
	}

	v.Ended = true
	if j.Mode == modeRead {
		again, err := h.Txn(ctx).Then(clientv3.OpGet(counter)).Commit()
		if err != nil {
			return err
		}
		if c, err = parseCounter(again.Responses[0].GetResponseRange().Kvs); err != nil {
			return err
		}
		v.Last = c.N
		_, err = h.Txn(ctx).Then(clientv3.OpPut(own, toJSON(v))).Commit()
		return err
	}
	v.Last = v.Read + 1
	c = counterValue{N: v.Last, Token: h.Token(), Worker: j.Worker}
	_, err = h.Txn(ctx).Then(clientv3.OpPut(counter, toJSON(c)), clientv3.OpPut(own, toJSON(v))).Commit()
	return err
}

// parseCounter parses the counter, which does not exist at first.
func parseCounter(kvs []*mvccpb.KeyValue) (c counterValue, err error) {
	if len(kvs) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(kvs[0].Value, &c); err != nil {
		return c, fmt.Errorf("%s: another program wrote there: %w", kvs[0].Key, err)
	}
	return c, nil
}

// parseSection parses what a section has written, and its token.
func parseSection(p lockPaths, kv *mvccpb.KeyValue) (token int64, v sectionValue, err error) {
	if token, err = strconv.ParseInt(strings.TrimPrefix(string(kv.Key), p.sections()), 10, 64); err == nil {
		err = json.Unmarshal(kv.Value, &v)
	}
	if err != nil {
		return 0, v, fmt.Errorf("%s: another program wrote there: %w", kv.Key, err)
	}
	return token, v, nil
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(b)
}
