// What is done for many entries although etcd denies the rights on some.

package settle

import (
	"cmp"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

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
