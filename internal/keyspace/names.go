// The names of a Multi.

package keyspace

import (
	"errors"
	"fmt"
	"slices"
)

// CheckNames returns why these can't be the names of one Multi, which has at most max; nil if they can.
func CheckNames(names []string, limit int) error {
	switch n := len(names); {
	case n == 0:
		return errors.New("a Multi needs at least one name")
	case n > limit:
		return fmt.Errorf("a Multi has at most %d names, not %d", limit, n)
	}
	for i, name := range names {
		if err := CheckName(name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("%q is given twice", name)
		}
	}
	return nil
}
