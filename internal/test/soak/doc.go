// Package soak is a test only: workers use a few locks in every way there is,
// while a nemesis breaks whatever etcdtest can break, at random, and package
// history judges what came of it.
//
//	make soak                        for a minute, with a new seed
//	make soak SEED=7 T=30m           for half an hour, in rounds of a minute with the seeds 7, 8, ...
//	make soak SEED=9 T=1m            the third of those rounds again
//
// One client is behind a grpc-proxy, one has small limits for the size of messages, and in each second round etcd allows no
// more than 16 operations in a transaction. TestRestore restores snapshots instead.
//
// A seed gives the same sequence of faults, of the same lengths, in each lane of
// the nemesis (the members, the data, and each client), and the same sequence of
// choices to each worker; how these fall together in time is up to the machine.
//
// Where a round fails it leaves its history in a directory below
// $ETCDLOCK_ARTIFACTS, or else below the system's for temporary files, and says
// where: for a set that is not linearizable, a page to look at in a browser.
package soak
