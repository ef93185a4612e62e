// Software transactional memory: etcd's own, which takes no locks.

package concurrency

import "go.etcd.io/etcd/client/v3/concurrency"

// What follows is that of go.etcd.io/etcd/client/v3/concurrency.
type (
	// STM is an interface for software transactional memory.
	STM = concurrency.STM
	// Isolation is how transactions interfere and conflict.
	Isolation = concurrency.Isolation
)

// The isolation levels.
const (
	SerializableSnapshot = concurrency.SerializableSnapshot
	Serializable         = concurrency.Serializable
	RepeatableReads      = concurrency.RepeatableReads
	ReadCommitted        = concurrency.ReadCommitted
)

// NewSTM and its options. Client 3.6 does not export their type, so it has no name here.
var (
	NewSTM           = concurrency.NewSTM
	WithIsolation    = concurrency.WithIsolation
	WithAbortContext = concurrency.WithAbortContext
	WithPrefetch     = concurrency.WithPrefetch
)

// NewSTMRepeatable, NewSTMSerializable and NewSTMReadCommitted are deprecated in etcd's package too: use NewSTM.
var (
	NewSTMRepeatable    = concurrency.NewSTMRepeatable
	NewSTMSerializable  = concurrency.NewSTMSerializable
	NewSTMReadCommitted = concurrency.NewSTMReadCommitted
)
