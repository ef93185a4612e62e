package etcdlock

// Who of those that wait on one client share a watch on all of the queue.

// crowdShare is which part of a queue, at least, those who share a watch on all of it
// are. It bounds to how many clients etcd tells each release: a watch of one waiter is
// told of hardly any but the one that it waits for.
const crowdShare = 4

// crowd is the key of the watch that all on one client can share who wait for the lock.
func (e *entry) crowd() shareKey {
	from, _ := exclusiveRange(e.name)
	_, end := sharedRange(e.name)
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return shareKey{e.s.watcher.scope, from, end}
}

// joinCrowd counts one more who waits, until leave is called.
func (e *entry) joinCrowd() (leave func()) {
	k := e.crowd()
	add := func(n int) {
		shares.mu.Lock()
		defer shares.mu.Unlock()
		if shares.waiting[k] += n; shares.waiting[k] == 0 {
			delete(shares.waiting, k)
		}
	}
	add(1)
	return func() { add(-1) }
}

// crowded reports whether those who wait on the client, and more besides, are several,
// and a good part of a queue of that size.
func (k shareKey) crowded(more int, size int64) bool {
	shares.mu.Lock()
	defer shares.mu.Unlock()
	n := shares.waiting[k] + more
	return n > 1 && int64(n)*crowdShare >= size
}

// viewOf is the view of an entry that has seen all of the queue. One of a crowd waits
// for all exclusive ones below, however many: the watch that it shares tells of all of
// them, and it needs no look when it comes near the front.
func (e *entry) viewOf(queue []queued) view {
	v, _ := blocker(e.name, e.wants.kind(), e.rev, queue, true)
	if len(v.next) == 0 || e.wants == readHold || !e.crowd().crowded(1, int64(len(queue))) {
		return v
	}
	all := view{last: true}
	for _, q := range queue {
		switch kindOf(e.name, q.key) {
		case exclusive:
			all.blockers = append(all.blockers, q)
		case shared:
			return v
		}
	}
	return all
}
