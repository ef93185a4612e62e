// The names of locks among keys.

package keyspace

import "strings"

// A Scan finds the names of locks among keys that come in key order. It yields each name
// once, and a nested name before the one that it is nested in.
//
// The keys of a name need not be neighbours: the keys of names nested in it lie between. But
// all of them lie below "<name>/", so a name can come again only until the keys have left that
// prefix. Names that are still open are nested in each other, so there are never more of them
// than a key has slashes.
type Scan struct{ open []string }

// Next takes the next key. It yields the names that end before key, and returns false as soon
// as yield does.
func (s *Scan) Next(key string, yield func(name string) bool) bool {
	if !s.leave(key, yield) {
		return false
	}
	if name, ok := NameOf(key); ok {
		s.enter(name)
	}
	return true
}

// End yields the names that are still open. No key comes after it.
func (s *Scan) End(yield func(name string) bool) { s.leave("", yield) }

// leave yields the names that have no key from key on; "" stands for the end of all keys.
func (s *Scan) leave(key string, yield func(string) bool) bool {
	for n := len(s.open) - 1; n >= 0; n-- {
		name := s.open[n]
		if key != "" && strings.HasPrefix(key, name+"/") {
			break
		}
		s.open = s.open[:n]
		if !yield(name) {
			return false
		}
	}
	return true
}

// enter notes a name. The last one noted is the same, or one that it is nested in, or none.
func (s *Scan) enter(name string) {
	if n := len(s.open); n == 0 || s.open[n-1] != name {
		s.open = append(s.open, name)
	}
}
