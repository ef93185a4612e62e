// Package duration is a flag that takes a duration, or a plain number of seconds as
// etcdctl's --ttl does.
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

// String writes zero in the form that pflag recognises: --help then shows no default.
func (v *value) String() string {
	if *v == 0 {
		return "0"
	}
	return time.Duration(*v).String()
}

// Type is the name of the value in --help.
func (v *value) Type() string { return "duration" }

// Set takes "10" as ten seconds, and whatever [time.ParseDuration] takes.
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
