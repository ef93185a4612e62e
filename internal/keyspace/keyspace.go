// Package keyspace is the grammar of the keys of a lock, and which of a session's keys
// are in use. It makes no request and knows nothing of the order of a queue.
//
// All keys of the lock name are below "<name>/":
//
//	<lease>  <lease>-<n>     exclusive entries: a Mutex, a write lock
//	r<lease> r<lease>-<n>    shared entries: a read lock, and the second key of a write lock
//
// <lease> is the lease's ID, and <n> counts from 1, both in lower-case hex without leading
// zeros. 'r' sorts after every hex digit, so each kind of entry has a range of its own. Any
// other key below "<name>/", for example that of a lock "<name>/x", is foreign: it neither
// blocks nor counts.
package keyspace

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind is what a key below a lock's prefix is.
type Kind uint8

// Of a lock's keys, the foreign ones are no entries.
const (
	Foreign   Kind = iota // no entry
	Exclusive             // blocks every later entry
	Shared                // blocks later exclusive entries
)

// KindOf parses key by the grammar above.
func KindOf(name, key string) Kind {
	if len(key) <= len(name) || key[:len(name)] != name || key[len(name)] != '/' {
		return Foreign
	}
	s := key[len(name)+1:]
	k := Exclusive
	if strings.HasPrefix(s, "r") {
		k, s = Shared, s[1:]
	}
	lease, n, numbered := strings.Cut(s, "-")
	if !isHex(lease) || numbered && !isHex(n) {
		return Foreign
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

// Dir is the directory of a name, "a/b" of "a/b/c". It is empty if the name has none.
func Dir(name string) string { return name[:max(0, strings.LastIndexByte(name, '/'))] }

// All is the range of keys, from from to before to, that holds every entry of name. Foreign keys may
// lie in it.
func All(name string) (from, to string) { return name + "/", name + "0" }

// Exclusives is the range that holds the exclusive entries of name, and perhaps foreign keys.
func Exclusives(name string) (from, to string) { return name + "/0", name + "/g" }

// Shareds is the range that holds the shared entries of name, and perhaps foreign keys.
func Shareds(name string) (from, to string) { return name + "/r", name + "/s" }

// Blocking is the range of keys that can block an entry of that kind.
func Blocking(name string, k Kind) (from, to string) {
	if k == Shared {
		return Exclusives(name)
	}
	return All(name)
}

// A Queue is that of a name, as an entry of that kind sees it.
type Queue struct {
	Name string
	Kind Kind
}

// Blocking is the range of keys that can block the entry.
func (q Queue) Blocking() (from, to string) { return Blocking(q.Name, q.Kind) }

// Base is the first key, the one without <n>, of a lease's entries of that kind.
func Base(name string, k Kind, lease int64) string {
	if k == Shared {
		return name + "/r" + strconv.FormatInt(lease, 16)
	}
	return name + "/" + strconv.FormatInt(lease, 16)
}

// Own is the range that holds the entries of one session's base, and perhaps foreign keys, but no other session's entry:
// "-<n>" is before ".", and "." is before any digit and before "/".
func Own(base string) (from, to string) { return base, base + "." }

// LeaseOf is the lease, in hex, that the key of an entry of name has in it.
func LeaseOf(name, key string) string {
	lease, _, _ := strings.Cut(strings.TrimPrefix(key[len(name)+1:], "r"), "-")
	return lease
}

// CheckName says what is wrong with the name of a lock.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case strings.HasSuffix(name, "/"):
		return errors.New(`it ends in "/", and without that it is the name of another lock`)
	case !utf8.ValidString(name):
		return errors.New("it is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it has a control character")
	}
	return nil
}

// NameOf is the name of the lock that key is an entry of.
func NameOf(key string) (name string, ok bool) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", false
	}
	name = key[:i]
	return name, CheckName(name) == nil && KindOf(name, key) != Foreign
}

// IsKeyOf reports whether key is one that a session with this lease makes.
func IsKeyOf(key string, lease int64) bool {
	name := key[:max(0, strings.LastIndexByte(key, '/'))]
	base, _, ok := split(key)
	return ok && KindOf(name, key) != Foreign && (base == Base(name, Exclusive, lease) || base == Base(name, Shared, lease))
}

// split divides a session's key into its base and its <n>, which is 0 if it has none.
func split(key string) (base string, n int, ok bool) {
	i := strings.LastIndexByte(key, '-')
	if i < 0 || i < strings.LastIndexByte(key, '/') {
		return key, 0, true
	}
	u, err := strconv.ParseUint(key[i+1:], 16, 31)
	return key[:i], int(u), err == nil
}

// join is the key that split divides.
func join(base string, n int) string {
	if n == 0 {
		return base
	}
	return base + "-" + strconv.FormatInt(int64(n), 16)
}
