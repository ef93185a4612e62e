package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// wants checks that a command gets exactly these arguments. Otherwise the error says
// what is missing and how the command is used, which Cobra's own check does not.
func wants(what ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n < len(what):
			return misused(cmd, "%s is missing", what[n])
		case n > len(what):
			return misused(cmd, "%q is one argument too many", args[len(what)])
		}
		return nil
	}
}

// nameAndCommand checks the arguments NAME -- CMD ARG..., or -- NAME -- CMD ARG... for a NAME that begins with "-".
func nameAndCommand(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case dash == 0 && len(args) > 1 && args[1] == "--":
		if len(args) == 2 {
			return misused(cmd, "CMD is missing after --")
		}
	case len(args) == 0 || dash == 0:
		return misused(cmd, "%s is missing", lockName)
	case dash < 0 || dash > 1:
		return misused(cmd, `a "--" is missing between NAME and CMD`)
	case len(args) == 1:
		return misused(cmd, "CMD is missing after --")
	}
	return nil
}

// nameAndArgv are what nameAndCommand has checked.
func nameAndArgv(cmd *cobra.Command, args []string) (name string, argv []string) {
	if cmd.ArgsLenAtDash() == 0 {
		return args[0], args[2:]
	}
	return args[0], args[1:]
}

const lockName = "the name of a lock"

// misused is the error of wrong arguments.
func misused(cmd *cobra.Command, format string, args ...any) error {
	return fmt.Errorf("%s; usage: %s", fmt.Sprintf(format, args...), cmd.UseLine())
}

// badFlag adds to the error of a flag where the flags are listed.
func badFlag(cmd *cobra.Command, err error) error {
	if strings.HasPrefix(err.Error(), "unknown shorthand flag") {
		return fmt.Errorf("%w; a NAME that begins with - stands after --; %s --help lists the flags", err, cmd.CommandPath())
	}
	return fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())
}

// release is set by the build of an image: there is no repository in it to ask for the version.
var release string

// version says what this binary was built from.
func version() string {
	own, etcd := "of an unknown version", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		own = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && own == "(devel)" {
				own += " " + s.Value
			}
		}
		for _, m := range info.Deps {
			if strings.HasPrefix(m.Path, "go.etcd.io/etcd/client/v3") {
				etcd = "etcd client " + m.Version + ", "
			}
		}
	}
	return fmt.Sprintf("%s (%s%s, %s/%s)", cmp.Or(release, own), etcd, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
