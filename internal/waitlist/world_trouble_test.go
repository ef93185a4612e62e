// What goes wrong in a random world besides losses: watches that tell after they were closed, checks that come late, a stream
// that is silent, and what etcd refuses.

package waitlist

import "errors"

// trouble is one thing that the list must bear at any time.
func (w *world) trouble() {
	switch w.choose(4) {
	case 0: // the session's stream is silent
		w.logf("the list is refreshed")
		w.l.Refresh()
	case 1:
		if len(w.closed) > 0 {
			w.tellLate(w.choose(len(w.closed)))
		}
	case 2:
		w.check()
	case 3:
		if len(w.checks) > 0 {
			i := w.choose(len(w.checks))
			f := w.checks[i]
			w.checks = append(w.checks[:i:i], w.checks[i+1:]...)
			f()
		}
	}
}

// tellLate has a watch that was closed tell of what it had by then, or end.
func (w *world) tellLate(i int) {
	ow := w.closed[i]
	if w.choose(3) > 0 && w.tell(ow) {
		return
	}
	w.closed = append(w.closed[:i:i], w.closed[i+1:]...)
	w.logf("the watch %s..%s, which was closed, ends", ow.From, ow.To)
	ow.Broke(errors.New("closed"))
}

// check reads whether an entry of the session is there, as the session does now and then for all of them.
func (w *world) check() {
	if len(w.own) == 0 {
		return
	}
	a := w.own[w.choose(len(w.own))]
	if a.p == nil || a.over || a.p.rev == 0 {
		return
	}
	key := a.keys[0]
	w.checks = append(w.checks, func() {
		if at := w.now(); w.state()[key] != a.rev {
			w.checks = append(w.checks, func() {
				w.logf("%s was missing at %d, as %s", a.name, at, key)
				if !a.over {
					w.lose(a.p.Missing(key, at))
				}
			})
		}
	})
}

var errRefused = errors.New("refused")

// refuse has etcd refuse a step of an agent, or the agent give the step up since it was dismissed.
func (w *world) refuse(g *asker, s Step) bool {
	if w.mercy {
		return false
	}
	refused := w.refuses && w.choose(16) == 0
	if !refused && w.choose(32) > 0 {
		return false
	}
	g.next = func() {
		switch {
		case g.ctx.Err() != nil:
			w.logf("an agent that was dismissed drops %+v", s)
			w.l.Dropped(&s)
		case refused:
			w.logf("etcd refuses %+v", s)
			s.For.Owner.(*actor).refused = true
			w.l.Fail(&s, errRefused)
			if s.For.state == waiting {
				w.fail("it waits on, though etcd has refused")
			}
		default:
			w.l.Fail(&s, nil)
		}
	}
	return true
}
