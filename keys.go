package etcdlock

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The keys of one lock, all below "<name>/":
//
//	<lease>  <lease>-<n>     exclusive entries: a Mutex, a write lock
//	r<lease> r<lease>-<n>    shared entries: a read lock
//
// <lease> is the lease's ID and <n> = 1, 2, ... in lower-case hex without
// leading zeros. 'r' sorts after every hex digit, so that either kind fills a
// range of its own. Whatever else lies below "<name>/", such as the keys of a
// lock "<name>/x", is no entry: it neither blocks nor counts.

// kind is what a key below a lock's prefix is.
type kind uint8

const (
	foreign   kind = iota // no entry
	exclusive             // blocks every later entry
	shared                // blocks later exclusive entries
)

// kindOf parses key by the grammar above.
func kindOf(name, key string) kind {
	if len(key) <= len(name) || key[:len(name)] != name || key[len(name)] != '/' {
		return foreign
	}
	s := key[len(name)+1:]
	k := exclusive
	if strings.HasPrefix(s, "r") {
		k, s = shared, s[1:]
	}
	lease, n, numbered := strings.Cut(s, "-")
	if !isHex(lease) || numbered && !isHex(n) {
		return foreign
	}
	return k
}

// isHex reports whether s is a positive int64 as %x writes it.
func isHex(s string) bool {
	if s == "" || len(s) > 16 || s[0] == '0' || len(s) == 16 && s[0] > '7' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// prefixRange holds every entry of name; exclusiveRange and sharedRange those
// of one kind. Nested locks and stray keys may lie in any of them.
func prefixRange(name string) (from, to string)    { return name + "/", name + "0" }
func exclusiveRange(name string) (from, to string) { return name + "/0", name + "/g" }
func sharedRange(name string) (from, to string)    { return name + "/r", name + "/s" }

func exclusiveBase(name string, id clientv3.LeaseID) string {
	return name + "/" + strconv.FormatInt(int64(id), 16)
}

func sharedBase(name string, id clientv3.LeaseID) string {
	return name + "/r" + strconv.FormatInt(int64(id), 16)
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case strings.HasSuffix(name, "/"):
		return fmt.Errorf("%w: it ends in \"/\"", ErrInvalidName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: it is not UTF-8", ErrInvalidName)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%w: it has a control character", ErrInvalidName)
	}
	return nil
}

// splitKey is the base of a session's key, and its <n>, 0 without.
func splitKey(key string) (base string, n int, ok bool) {
	i := strings.LastIndexByte(key, '-')
	if i < 0 || i < strings.LastIndexByte(key, '/') {
		return key, 0, true
	}
	u, err := strconv.ParseUint(key[i+1:], 16, 31)
	return key[:i], int(u), err == nil
}

// isKeyOf reports whether key is one that a session of this lease makes.
func isKeyOf(key string, id clientv3.LeaseID) bool {
	name := key[:max(0, strings.LastIndexByte(key, '/'))]
	base, _, ok := splitKey(key)
	return ok && kindOf(name, key) != foreign && (base == exclusiveBase(name, id) || base == sharedBase(name, id))
}

// keysInUse are the keys of a session that are in use: a bit for each <n> of a
// base, and a word for each 64 of them, by the first key of these. A session takes
// the lowest free key, so that a service which locks a name over and over uses
// one: etcd's index keeps every deleted key until the next compaction, and each
// read of the prefix walks them all.
//
// Invariant (I6): a key is free only when its last use is settled.
type keysInUse map[string]uint64

func nthKey(base string, n int) string {
	if n == 0 {
		return base
	}
	return base + "-" + strconv.FormatInt(int64(n), 16)
}

func (u keysInUse) take(base string) (key string) {
	for first := 0; ; first += 64 {
		word := nthKey(base, first)
		bit := bits.TrailingZeros64(^u[word])
		if bit == 64 {
			continue
		}
		if key = word; bit > 0 {
			key = nthKey(base, first+bit)
		}
		u[word] |= 1 << bit
		return key
	}
}

// find is where the bit of key is.
func (u keysInUse) find(key string) (word string, bit uint64) {
	base, n, _ := splitKey(key)
	return nthKey(base, n-n%64), 1 << (n % 64)
}

func (u keysInUse) uses(key string) bool {
	word, bit := u.find(key)
	return u[word]&bit != 0
}

func (u keysInUse) free(key string) {
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
