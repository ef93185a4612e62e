// Calls of one hook of many sets, and those about one thing.

package outbox

import "context"

// In is the hook of each set without its first parameter, which is ctx.
func In[H, I any](ctx context.Context, hook func(H) func(context.Context, I)) func(H) func(I) {
	return func(h H) func(I) {
		if f := hook(h); f != nil {
			return func(info I) { f(ctx, info) }
		}
		return nil
	}
}

// Each calls the same hook of each set, where there is one. It is nil without sets, and costs nothing then.
func Each[H, I any](sets []H, hook func(H) func(I), info I) func() {
	if len(sets) == 0 {
		return nil
	}
	return func() {
		for _, h := range sets {
			if f := hook(h); f != nil {
				f(info)
			}
		}
	}
}

// A Story is all calls about one thing. They are made from the first one to the last, or none of them. It is not safe
// for concurrent use.
type Story struct{ begun, dropped bool }

// Tell has f called after what was told before. If that was dropped, or if this is the first call and too many wait, it
// drops f.
func (s *Story) Tell(o *Outbox, f func()) {
	switch {
	case s.dropped, f == nil:
	case s.begun:
		o.tellRest(f)
	default:
		s.begun, s.dropped = true, !o.Tell(f)
	}
}
