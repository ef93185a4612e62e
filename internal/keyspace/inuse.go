// Which keys of a session are in use.

package keyspace

import "math/bits"

// InUse is the set of a session's keys that are in use. A session takes the lowest free key,
// so that a service which locks a name over and over uses one key: etcd's index keeps every
// deleted key until the next compaction, and each read of the prefix walks them all. The
// caller guards it.
//
// It has a bit for each <n> of a base, in words of 64, by the first key of the word. A name
// that is not in use takes no memory.
//
// Invariant (I6): a key is free only when its last use is settled.
type InUse map[string]uint64

// Take returns the lowest free key of base, and marks it as used.
func (u InUse) Take(base string) (key string) {
	for first := 0; ; first += 64 {
		word := join(base, first)
		bit := bits.TrailingZeros64(^u[word])
		if bit == 64 {
			continue
		}
		if key = word; bit > 0 {
			key = join(base, first+bit)
		}
		u[word] |= 1 << bit
		return key
	}
}

// Claim marks key as used, and reports whether it was free.
func (u InUse) Claim(key string) bool {
	word, bit := u.find(key)
	free := u[word]&bit == 0
	u[word] |= bit
	return free
}

// find is where the bit of key is.
func (u InUse) find(key string) (word string, bit uint64) {
	base, n, _ := split(key)
	return join(base, n-n%64), 1 << (n % 64)
}

// Has reports whether key is in use.
func (u InUse) Has(key string) bool {
	word, bit := u.find(key)
	return u[word]&bit != 0
}

// Some are keys in use that are wanted: at least one of each base that has any.
func (u InUse) Some(wanted func(key string) bool) (keys []string) {
	for word, left := range u {
		base, first, _ := split(word)
		for ; left != 0; left &= left - 1 {
			if key := join(base, first+bits.TrailingZeros64(left)); wanted(key) {
				keys = append(keys, key)
				break
			}
		}
	}
	return keys
}

// Free makes key free. To free a key that is free already is a bug.
func (u InUse) Free(key string) {
	word, bit := u.find(key)
	switch left := u[word] &^ bit; left {
	case u[word]:
		panic("bug: the free key " + key + " was freed")
	case 0:
		delete(u, word)
	default:
		u[word] = left
	}
}
