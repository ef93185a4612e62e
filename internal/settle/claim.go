// The claim of an entry that is adopted: its keys are reserved before it is known whether it is there.

package settle

import "slices"

// claim reserves the keys of a, unless the session uses one of them.
func (k *Keys) claim(a *Adopted) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := a.keys()
	if slices.ContainsFunc(keys, k.usesLocked) {
		return false
	}
	a.vacant = make(map[string]*unsettled)
	for _, key := range keys {
		if u, ok := k.vacant[key]; ok {
			a.vacant[key] = u
			delete(k.vacant, key) // who settles it leaves it alone from now on
		}
		k.inUse.Claim(key)
	}
	return true
}

// Unclaim leaves the entry to the next Adopt. What was vacant is settled from the start, since who settled it may have left it
// alone meanwhile.
func (k *Keys) Unclaim(a *Adopted) {
	var again []string
	k.mu.Lock()
	for key, raw := range a.raw {
		if k.raw[key] = raw; raw == (rawValue{}) {
			delete(k.raw, key)
		}
	}
	for _, key := range a.keys() {
		switch u, vacant := a.vacant[key]; {
		case !vacant:
			k.inUse.Free(key)
		case u == nil: // left to others by Skip
			k.vacant[key] = nil
		default:
			again = append(again, key)
		}
	}
	k.tellLocked()
	k.mu.Unlock()
	if len(again) > 0 {
		k.Settle(again...)
	}
}

// keep ends a claim that has found the entry there. From then on a late write of the process before, which has the same value,
// is the session's own.
func (k *Keys) keep(a *Adopted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.raw = make(map[string]rawValue)
	for _, key := range a.keys() {
		a.raw[key] = k.raw[key]
		k.raw[key] = rawValue{value: a.Value}
	}
	for _, p := range a.Parts {
		left := slices.DeleteFunc(k.left[p.Name], func(key string) bool { return key == p.Key || key == p.SharedKey })
		if k.left[p.Name] = left; len(left) == 0 {
			delete(k.left, p.Name)
		}
	}
}

// nextChange is closed when Adopt may find something else, or may claim a key that is in use now.
func (k *Keys) nextChange() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

// Entered takes note that an entry has its place. On an adopted lease an Adopt may wait for that.
func (k *Keys) Entered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tellLocked()
}

func (k *Keys) tellLocked() {
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}
