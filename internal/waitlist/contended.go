// Telling a holder that another entry of the list waits for it.

package waitlist

import "github.com/etcdlock/etcdlock/internal/queue"

// WhenContended has signal called as soon as another entry of the list waits for what the entry excludes,
// which has the lock. It is called once or more, with the list's mutex held: it is only to close a channel,
// or the like.
func (e *Entry) WhenContended(signal func()) {
	e.l.mu.Lock()
	defer e.l.unlock()
	e.contended = signal
	e.l.contendLocked()
}

// contendLocked tells those that are waited for.
func (l *List) contendLocked() {
	for i := range l.places {
		e := l.places[i].own
		if e == nil || e.contended == nil || e.state != held {
			continue
		}
		for _, p := range l.places[i+1:] {
			if p.own != nil && p.own.state == waiting && queue.Blocks(e.kind, p.kind) {
				e.contended()
				e.contended = nil
				break
			}
		}
	}
}
