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

// slot is a key of a session, the n-th of its base.
type slot struct {
	key string
	n   int
}

func (k slot) base() string {
	if k.n == 0 {
		return k.key
	}
	return k.key[:strings.LastIndexByte(k.key, '-')]
}

// slotOf is the slot of key, if that is one of the lease's.
func slotOf(key string, id clientv3.LeaseID) (k slot, ok bool) {
	name := key[:max(0, strings.LastIndexByte(key, '/'))]
	if kindOf(name, key) == foreign {
		return slot{}, false
	}
	base, n, numbered := strings.Cut(key[len(name):], "-")
	if base = name + base; base != exclusiveBase(name, id) && base != sharedBase(name, id) {
		return slot{}, false
	}
	k.key = key
	if numbered {
		u, err := strconv.ParseUint(n, 16, 31)
		k.n = int(u)
		return k, err == nil
	}
	return k, true
}

// slots says which keys of a session are in use, a bit for each <n> of a base.
// A session takes the lowest free key, so that a service which locks a name
// over and over uses one: etcd's index keeps every deleted key until the next
// compaction, and each read of the prefix walks them all.
//
// Invariant (I6): a key is free only when its last use is settled.
type slots map[string][]uint64

func (s slots) take(base string) slot {
	used := s[base]
	word := 0
	for word < len(used) && used[word] == ^uint64(0) {
		word++
	}
	if word == len(used) {
		used = append(used, 0)
		s[base] = used
	}
	bit := bits.TrailingZeros64(^used[word])
	used[word] |= 1 << bit
	n := word*64 + bit
	if n == 0 {
		return slot{base, 0}
	}
	return slot{base + "-" + strconv.FormatInt(int64(n), 16), n}
}

func (s slots) uses(k slot) bool {
	used := s[k.base()]
	return k.n/64 < len(used) && used[k.n/64]&(1<<(k.n%64)) != 0
}

func (s slots) free(k slot) {
	if !s.uses(k) {
		panic("bug: a free key of " + k.base() + " was freed")
	}
	base, n := k.base(), k.n
	used := s[base]
	used[n/64] &^= 1 << (n % 64)
	for _, word := range used {
		if word != 0 {
			return
		}
	}
	delete(s, base)
}
