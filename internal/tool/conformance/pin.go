//go:build pin

package main

// This keeps the tests module, and what its tests need, in go.mod and go.sum.
import _ "go.etcd.io/etcd/tests/v3/framework/integration"
