// The names of a Multi.

package keyspace

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Prefixes puts prefixes into words, one or several with a line break between them, which no name has.
func Prefixes(lines string) string {
	all := strings.Split(lines, "\n")
	if len(all) == 1 {
		return "the prefix " + strconv.Quote(all[0])
	}
	last := len(all) - 1
	for i := range all {
		all[i] = strconv.Quote(all[i])
	}
	return "the prefixes " + strings.Join(all[:last], ", ") + " and " + all[last]
}

// CheckNames returns why these can't be the names of one Multi, which has at most limit; nil if they can.
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
