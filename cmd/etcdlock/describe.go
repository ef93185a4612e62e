package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/etcdlock/etcdlock"
)

// plain replaces all characters that a terminal would not just print. Anybody may
// write names, owners and keys, with control sequences in them.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// age writes a duration for people, in at most two units and whole seconds.
func age(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d < 0:
		return "-" + age(-d)
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// count writes a number with its noun.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// owner says who made an entry. Etcd's own clients don't write that.
func owner(e etcdlock.Entry) string {
	switch {
	case e.Owner != "":
		return plain(e.Owner)
	case e.Lease != 0:
		return "unknown (lease " + strconv.FormatInt(int64(e.Lease), 16) + ")"
	}
	return "unknown"
}

// party is the owner of an entry, and of a Multi's the other names that it locks too.
func party(e etcdlock.Entry) string {
	const some = 3
	others := others(e)
	if len(others) == 0 {
		return owner(e)
	}
	more := ""
	if n := len(others); n > some {
		others, more = others[:some], fmt.Sprintf(" and %d more", n-some)
	}
	return owner(e) + " (with " + plain(strings.Join(others, ", ")) + more + ")"
}

// others are the names that a Multi locks besides that of the entry.
func others(e etcdlock.Entry) []string {
	if e.Names == "" {
		return nil
	}
	return slices.DeleteFunc(strings.Split(e.Names, "\n"), func(name string) bool { return name == e.Name })
}

// describe writes an entry in words.
func describe(e etcdlock.Entry, now time.Time) string {
	if e.Queued.IsZero() {
		return owner(e)
	}
	return fmt.Sprintf("%s (queued %s ago)", owner(e), age(now.Sub(e.Queued)))
}

// ref names an entry as `etcdlock break` takes it.
func ref(e etcdlock.Entry) string { return plain(e.Key) + "@" + strconv.FormatInt(e.Token, 10) }
