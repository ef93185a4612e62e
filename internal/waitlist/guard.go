// The guard of an entry that waits for others of its own list.

package waitlist

// A guard is for an entry that waits for holders of its own list, or idle entries of it, and has done so for GuardAfter:
// they are watched then, and the entry, since somebody may remove one of them.
type guard struct {
	guarded *Part
	ticks   *Part // waited so when the timer was set; nil if no timer is set
}

// guardsLocked reports whether p has waited for long enough. If not, the timer is set, unless it is set already: where
// the lock goes from one entry to the next, it costs one timer in GuardAfter.
func (l *List) guardsLocked(p *Part) bool {
	if l.guarded != p && l.ticks == nil {
		l.ticks = p
		l.After(l.GuardAfter, l.tick)
	}
	return l.guarded == p
}

func (l *List) tick() {
	l.lock()
	defer l.unlock()
	l.guarded, l.ticks = l.ticks, nil
	l.grantLocked()
}
