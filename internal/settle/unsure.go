// Which entries the list of a lease's keys tells too little of.

package settle

import (
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// Unsure are those of the entries that may not be in etcd any more, after Sweep has found the keys there: those whose key
// is not among them, and some whose request was sent more than once. The list of a lease's keys shows no revisions. So if
// somebody removes such an entry, and a late copy of its request writes the key anew, behind whoever waits, the list shows
// what it has shown before.
//
// There are as many of the latter as one request reads. If there are more, each call has others, since entries come in any
// order.
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
