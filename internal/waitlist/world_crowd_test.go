// Random worlds with more entries than a request looks for, and with keys that are no entries.

package waitlist

import (
	"fmt"

	"github.com/etcdlock/etcdlock/internal/keyspace"
)

// litter puts keys of other names, and stray ones, among those of the queue, which stay.
func (w *world) litter() {
	if w.choose(6) > 0 {
		return
	}
	for _, k := range []string{"a/3/7", "a/b/1", "a/config", "a/r4/5", "a/r5-0"} {
		if w.choose(2) == 0 {
			w.write(func(s map[string]int64, rev int64) { s[k] = rev })
			w.logf("%s is put, which is no entry", k)
		}
	}
}

// crowd has many readers wait behind a writer, and often a writer behind them.
func (w *world) crowd() {
	if w.choose(120) > 0 {
		return
	}
	n := []int{nextMax + 2, nextMax + 2, readersMax + 2}[w.choose(3)]
	if w.choose(4) == 0 { // of other sessions
		for i := range n {
			w.otherPuts(fmt.Sprintf("a/r%x-%x", 3+2*w.choose(3), 0x20+i), "")
		}
		return
	}
	w.room += n
	switch w.choose(3) {
	case 0:
		w.otherPuts("a/3", "")
	case 1:
		w.come(keyspace.Exclusive, w.choose(2) == 0)
	}
	for range n {
		w.come(keyspace.Shared, false)
	}
	if w.choose(2) == 0 {
		w.come(keyspace.Exclusive, w.choose(2) == 0)
	}
}

// come has an acquisition of the session come into the queue at once.
func (w *world) come(kind keyspace.Kind, write bool) {
	a := w.register(kind, write)
	for a.next != nil {
		a.next()
	}
	w.advance(a)
}
