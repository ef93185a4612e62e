// The claim of an entry that is adopted: its keys are reserved before it is known whether it is there.

package settle

import "slices"

// claim reserves the keys of a. If the session uses one of them, claim reserves none, and returns a channel that is closed when
// the user of that key has written an entry there, or has left the key.
func (k *Keys) claim(a *Adopted) (inUse <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := a.keys()
	if i := slices.IndexFunc(keys, k.usesLocked); i >= 0 {
		key := keys[i]
		if k.changed[key] == nil {
			k.changed[key] = make(chan struct{})
		}
		return k.changed[key]
	}
	a.vacant = make(map[string]*unsettled)
	for _, key := range keys {
		if u, ok := k.vacant[key]; ok {
			a.vacant[key] = u
			delete(k.vacant, key) // who settles it leaves it alone from now on
		}
		k.inUse.Claim(key)
	}
	return nil
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
		if a.vacant[key] == nil {
			k.inUse.Free(key)
		} else {
			again = append(again, key)
		}
	}
	k.tellLocked(a.keys())
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
}

// Entered takes note that an entry has its place, under these keys. On an adopted lease an Adopt may wait for that.
func (k *Keys) Entered(keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		delete(k.entering, key)
	}
	k.tellLocked(keys)
}

func (k *Keys) tellLocked(keys []string) {
	for _, key := range keys {
		if changed := k.changed[key]; changed != nil {
			close(changed)
			delete(k.changed, key)
		}
	}
}
