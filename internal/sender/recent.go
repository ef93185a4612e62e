// Names that a session has learnt something about lately.

package sender

import (
	"sync"
	"time"
)

// maxRecent bounds the names that are remembered.
const maxRecent = 1000

// A Recent remembers names for a while. It is safe for concurrent use; the zero value remembers none.
type Recent struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// Add remembers names for d. If maxRecent names are remembered and none has expired, new ones are not.
func (r *Recent) Add(names []string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.until)+len(names) > maxRecent {
		for name, until := range r.until {
			if !now.Before(until) {
				delete(r.until, name)
			}
		}
	}
	if r.until == nil {
		r.until = make(map[string]time.Time)
	}
	for _, name := range names {
		if _, ok := r.until[name]; ok || len(r.until) < maxRecent {
			r.until[name] = now.Add(d)
		}
	}
}

// Has reports whether it remembers one of the names.
func (r *Recent) Has(names []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.until) == 0 {
		return false
	}
	now := time.Now()
	for _, name := range names {
		if now.Before(r.until[name]) {
			return true
		}
	}
	return false
}

// Forget forgets names.
func (r *Recent) Forget(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		delete(r.until, name)
	}
}
