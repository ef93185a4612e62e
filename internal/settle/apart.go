// What is done for many entries although etcd denies the rights on some.

package settle

import (
	"cmp"
	"slices"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// MaxDenials bounds the requests of an Apart that are refused, where there may be thousands of entries.
const MaxDenials = 64

// Apart does f for entries, as many at a time as one request reads. Etcd may refuse what f asks because of one of them, which it does
// not name, or because they are many: then Apart does f for each half. After that many refusals Apart does nothing more. Entries come
// in any order, so the next time others are first.
func Apart[E any](entries []E, refusals int, f func(some []E) error) (err error) {
	for some := range slices.Chunk(entries, 2*etcd.Batch) { // most are those of write locks, two each
		err = cmp.Or(apart(some, &refusals, f), err)
	}
	return err
}

func apart[E any](some []E, refusals *int, f func(some []E) error) error {
	if *refusals == 0 {
		return nil
	}
	err := f(some)
	if !etcd.Refused(err) || etcd.RefusesAll(err) {
		return err
	}
	*refusals--
	if n := len(some) / 2; n > 0 {
		return cmp.Or(apart(some[:n], refusals, f), apart(some[n:], refusals, f))
	}
	return err
}
