//go:build unix

package main

// clients is the part of the document about clients. The tests that it names are in internal/test/faults.
const clients = `
## The clients it is tested with

Each of these clients takes locks and waits for them beside a client that is connected to etcd, is told of a loss, and closes, in
a test that the servers above ran too, except those behind a proxy. Etcd in the process runs with one member of the version in go.mod.

| client | test | what is different |
|---|---|---|
| in a namespace: ` + "`" + `KV` + "`" + `, ` + "`" + `Watcher` + "`" + ` and ` + "`" + `Lease` + "`" + ` of ` + "`" + `clientv3/namespace` + "`" + ` | ` + "`" + `TestFault_D4_WrappedClient/namespace` + "`" + ` | a watch that is silent can't be opened anew, so news of a loss may take half a TTL |
| with the ` + "`" + `KV` + "`" + ` of ` + "`" + `clientv3/ordering` + "`" + ` | ` + "`" + `TestFault_D4_WrappedClient/ordering` + "`" + ` | nothing |
| with the ` + "`" + `KV` + "`" + ` of ` + "`" + `clientv3/leasing` + "`" + ` | ` + "`" + `TestFault_D4_WrappedClient/leasing` + "`" + ` | nothing |
| behind ` + "`" + `etcd grpc-proxy` + "`" + ` | ` + "`" + `TestFault_D4_WrappedClient/grpc-proxy` + "`" + ` | as in a namespace |
| with wrappers of one's own | ` + "`" + `TestFault_D4_WrappedClient/own-wrapper` + "`" + ` | a lease is granted and renewed on the client's connection, past a ` + "`" + `Lease` + "`" + ` of one's own; a silent watch as in a namespace |
| of ` + "`" + `clientv3.NewCtxClient` + "`" + `, with a ` + "`" + `KV` + "`" + `, ` + "`" + `Watcher` + "`" + ` and ` + "`" + `Lease` + "`" + ` of one's own | ` + "`" + `TestFault_D4_WrappedClient/no-connection` + "`" + ` | a lease is granted and renewed by ` + "`" + `Grant` + "`" + ` and ` + "`" + `KeepAliveOnce` + "`" + `, and etcd chooses its ID |
| of etcd in the same process: ` + "`" + `v3client.New` + "`" + ` | ` + "`" + `TestFault_J14_EtcdInTheProcess` + "`" + ` | likewise |
`
