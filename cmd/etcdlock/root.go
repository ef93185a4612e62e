package main

import (
	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/demo"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:               "etcdlock",
		Short:             "Fair locks on etcd",
		SilenceUsage:      true, // main prints an error in one line
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(demo.Command(), demo.WorkerCommand())
	return root
}
