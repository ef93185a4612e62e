// Transactions that are built like the client's own, and committed in another way.

package etcd

import clientv3 "go.etcd.io/etcd/client/v3"

// A Txn is built like the client's own. Send commits it.
type Txn struct {
	Cmps       []clientv3.Cmp
	Then, Else []clientv3.Op
	Send       func(*Txn) (*clientv3.TxnResponse, error)
}

type txn struct{ Txn }

// Build returns what builds a Txn.
func Build(send func(*Txn) (*clientv3.TxnResponse, error)) clientv3.Txn { return &txn{Txn{Send: send}} }

func (t *txn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Cmps = append(t.Cmps, cs...)
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn.Then = append(t.Txn.Then, ops...)
	return t
}

func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn.Else = append(t.Txn.Else, ops...)
	return t
}

func (t *txn) Commit() (*clientv3.TxnResponse, error) { return t.Send(&t.Txn) }

// Op is the transaction as an operation of another one.
func (t *Txn) Op() clientv3.Op { return clientv3.OpTxn(t.Cmps, t.Then, t.Else) }
