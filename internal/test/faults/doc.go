// Package faults is a test only: the fault campaign. Each test is named after a row of docs/faults.md,
// takes locks through what goes wrong there, and fails on a library without the protection that the
// row is about. It uses the library as any program does: through its API, etcd, and the wire.
//
//	go test ./internal/test/faults
//	ETCDLOCK_RUNS=200 go test -run TestFault_F1 ./internal/test/faults     what depends on chance, 200 times
//	go run ./internal/tool/faulttable                                      writes docs/faults.md
//
// The tests named TestControl_ take etcd's own packages through the same steps and pass if those fail,
// which shows that the test of the row can fail. When all tests have ended, package history follows
// what the locks of the shared server did through the model of the protocol.
//
// A few tests of rows need a fake clock or a look inside: they stand beside the code that they test,
// with the same names.
//
// The testing package starts parallel tests from the last file to the first, by the names of the files. So the tests that
// wait longest stand in files with late names.
package faults
