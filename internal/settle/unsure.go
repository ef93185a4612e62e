// Which entries must be read, since the list of a lease's keys says too little of them.

package settle

import (
	"slices"

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
