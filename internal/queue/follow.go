// A snapshot of a queue that is kept up to date.

package queue

import (
	"maps"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A Follower keeps a snapshot up to date from readings and events, and tells one reader when
// it has changed. A reader that is slow misses states in between, and costs no more memory
// than one snapshot. It is safe for concurrent use.
type Follower struct {
	changed chan struct{} // of capacity 1: the snapshot is not what Newest gave last

	mu       sync.Mutex
	snapshot *Snapshot // nil before the first reading
}

// NewFollower makes a Follower of a queue that nothing is known of yet.
func NewFollower() *Follower { return &Follower{changed: make(chan struct{}, 1)} }

// Changed has a value when Newest has something new.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Newest calls use with the newest snapshot. What comes later counts as a change again.
func (f *Follower) Newest(use func(*Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.changed: // use gets it now
	default:
	}
	use(f.snapshot)
}

// Replace takes s, a later reading of the whole queue.
func (f *Follower) Replace(s *Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snapshot == nil || !maps.Equal(f.snapshot.Keys, s.Keys) {
		f.announceLocked()
	}
	f.snapshot = s
}

// Apply takes the events that followed the last reading.
func (f *Follower) Apply(events []*mvccpb.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snapshot.Apply(events) {
		f.announceLocked()
	}
}

// At is the revision of the snapshot, and how many keys it has, foreign ones included.
func (f *Follower) At() (rev int64, keys int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot.Rev, len(f.snapshot.Keys) + len(f.snapshot.Foreign)
}

// announceLocked says that there is something new. The caller holds f.mu.
func (f *Follower) announceLocked() {
	select {
	case f.changed <- struct{}{}:
	default: // said already, and not taken yet
	}
}
