// Package duration is the value of a flag that takes a duration, and also a plain
// number of seconds: etcdctl's --ttl is one.
package duration

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Var adds such a flag to fs.
func Var(fs *pflag.FlagSet, d *time.Duration, name string, preset time.Duration, usage string) {
	*d = preset
	fs.Var((*value)(d), name, usage)
}

type value time.Duration

// String writes zero as pflag recognises it, so that --help shows no default there.
func (v *value) String() string {
	if *v == 0 {
		return "0"
	}
	return time.Duration(*v).String()
}

// Type is what --help shows.
func (v *value) Type() string { return "duration" }

// Set takes "10" for ten seconds, or what [time.ParseDuration] takes.
func (v *value) Set(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		s += "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("use a number of seconds, or a number with a unit such as 90s, 5m or 1h")
	}
	*v = value(d)
	return nil
}
