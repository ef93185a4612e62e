// Which entries must be read, since the list of a lease's keys says too little of them.

package settle

import (
	"cmp"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// Unsure are the entries that may not be in etcd any more. there are the keys that Sweep has found. Unsure are the entries whose
// key is not there, and some of the entries whose request was sent more than once. If somebody removes an entry of the second
// kind, and a late copy of its request writes the key anew, behind whoever waits, the list of keys is as before, since it shows
// no revisions.
//
// Of the second kind there are as many as one request reads. If the session has more, each call has others, since entries come
// in any order.
func Unsure[E any](entries []E, there map[string]struct{}, of func(E) (key string, copied bool)) []E {
	left := etcd.Batch
	return slices.DeleteFunc(entries, func(e E) bool {
		key, copied := of(e)
		_, listed := there[key]
		if listed && copied {
			left--
		}
		return listed && (!copied || left < 0)
	})
}

// maxDenials bounds the requests of an Apart for which etcd denies the rights.
const maxDenials = 64

// Apart does f for entries, as many at a time as one request reads. If etcd denies the rights on one of them, which it does not name,
// Apart does f for each half. Etcd may deny the rights on thousands, so after maxDenials denials Apart does nothing more. Entries come in
// any order, so the next time others are first.
func Apart[E any](entries []E, f func(some []E) error) (err error) {
	denials := 0
	for some := range slices.Chunk(entries, etcd.Batch) {
		err = cmp.Or(apart(some, &denials, f), err)
	}
	return err
}

func apart[E any](some []E, denials *int, f func(some []E) error) error {
	if *denials == maxDenials {
		return nil
	}
	err := f(some)
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	*denials++
	if n := len(some) / 2; n > 0 {
		return cmp.Or(apart(some[:n], denials, f), apart(some[n:], denials, f))
	}
	return err
}
