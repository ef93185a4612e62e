// What an acquisition needs that has entries in several lists.

package waitlist

// WakeWith has the entry wake who waits for another one, before anything can have happened to it. Their
// waiter comes to one after the other. Until it says Begin nothing is asked for the entry, which is not in front:
// the agent asks for those behind it. It may be granted all the same.
func (p *Part) WakeWith(o *Part) {
	wake := o.Woken() // before the mutex is locked: o may be of this list
	p.l.lock()
	defer p.l.unlock()
	p.wake, p.state = wake, idle
}

// Begin says that somebody waits for the entry from now on.
func (p *Part) Begin() {
	p.l.lock()
	defer p.l.unlock()
	if p.state == idle {
		p.state = waiting
	}
}

// Look is a reading of the present that tells an entry what is before it, if there is anything that it waits
// for; then Saw. It is for one that nobody has asked for a while, and that would be in front else.
func (p *Part) Look() (s Step, ok bool) {
	l := p.l
	l.lock()
	defer l.unlock()
	front := l.frontLocked()
	if !p.waits() || front != nil && front.rev < p.rev || l.viewsCoverLocked(p) && !l.behindOthersLocked(p) {
		return s, false
	}
	s = l.readLocked(p, false)
	s.At, s.since = 0, l.fliesLocked(nil)
	return s, true
}
