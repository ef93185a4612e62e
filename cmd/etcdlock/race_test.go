//go:build race && unix

package main

func init() { buildFlags = append(buildFlags, "-race") }
