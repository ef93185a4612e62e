package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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

// shown writes a name or a key: as it is, or, if a terminal would not just print it, as a word that a shell reads back.
// A name may have characters that nobody sees, such as a no-break space, and it must be possible to copy it.
func shown(s string) string {
	if plain(s) == s && !strings.HasPrefix(s, "$'") {
		return s
	}
	return escaped(s)
}

// escaped writes s in the form $'...', which bash, zsh, ksh and busybox read.
func escaped(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '\'' || r == '\\':
			b.WriteString("\\" + s[:n])
		case unicode.IsPrint(r) && (r != utf8.RuneError || n > 1):
			b.WriteString(s[:n])
		default:
			for i := range n {
				fmt.Fprintf(&b, "\\%03o", s[i])
			}
		}
		s = s[n:]
	}
	return b.String() + "'"
}

// quote writes s as one word of a shell.
func quote(s string) string {
	switch {
	case plain(s) != s:
		return escaped(s)
	case s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/@._-:+,=%", r)
	}):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// argument writes a name as the argument of a command: one that begins with "-", which anybody may have written, is no flag.
func argument(name string) string {
	if strings.HasPrefix(name, "-") {
		return "-- " + quote(name)
	}
	return quote(name)
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
	case e.Data:
		return "what looks like data: " + data(e)
	case e.Owner != "":
		return plain(e.Owner)
	case e.Lease != 0:
		return "unknown (lease " + strconv.FormatInt(int64(e.Lease), 16) + ")"
	}
	return "unknown"
}

// data is what the key of an entry holds that looks like data.
func data(e etcdlock.Entry) string {
	const some = 60
	if v := []rune(e.Value); len(v) > some {
		return fmt.Sprintf("%q... (%d bytes)", string(v[:some]), len(e.Value))
	}
	return strconv.Quote(e.Value)
}

// looksLikeData says of such an entry what is wrong.
func looksLikeData(e etcdlock.Entry) string {
	return shown(e.Key) + " has no lease: it looks like data; keep data and lock names apart"
}

// stays says what is wrong with an entry without a lease that this package wrote. It stands behind the entry.
const stays = "has no lease: it stays until somebody removes it, even when its owner has ended"

// party is the owner of an entry, what it publishes, and of a Multi's the other names that it locks too.
func party(e etcdlock.Entry) string {
	return who(e) + value(e)
}

// value is what an entry publishes, or the beginning of it.
func value(e etcdlock.Entry) string {
	const some = 60
	switch v := []rune(plain(e.Value)); {
	case len(v) == 0, e.Data: // which owner has said
		return ""
	case len(v) > some:
		return ": " + string(v[:some]) + "..."
	default:
		return ": " + string(v)
	}
}

func who(e etcdlock.Entry) string {
	const some = 3
	others := others(e)
	if len(others) == 0 {
		return owner(e)
	}
	more := ""
	if n := len(others); n > some {
		others, more = others[:some], fmt.Sprintf(" and %d more", n-some)
	}
	return owner(e) + " (with " + shown(strings.Join(others, ", ")) + more + ")"
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
func ref(e etcdlock.Entry) string { return e.Key + "@" + strconv.FormatInt(e.Token, 10) }
