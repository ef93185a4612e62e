package demo

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// A job is the first line of a worker process's standard input. A second line, of any
// text, starts it. When the input ends, the demo is gone and the worker ends too.
type job struct {
	Worker  string         `json:"worker"`
	Etcd    connect.Config `json:"etcd"`
	Lock    lockPaths      `json:"lock"`
	Mode    mode           `json:"mode"`
	TTL     time.Duration  `json:"ttl"`
	Rounds  int            `json:"rounds"`
	Section time.Duration  `json:"section"`           // time in the critical section
	Pause   time.Duration  `json:"pause"`             // longest time between two rounds
	HangIn  int            `json:"hang_in,omitempty"` // the round in which it does not leave the section
}

// mode is the kind of lock that a worker takes.
type mode string

const (
	modeMutex mode = "mutex"
	modeRead  mode = "read"
	modeWrite mode = "write"
)

// A report is a line of a worker process's standard output.
type report struct {
	Event    event            `json:"event"`
	At       time.Time        `json:"at"`
	Lease    clientv3.LeaseID `json:"lease,omitempty"`   // ready
	TTL      time.Duration    `json:"ttl,omitempty"`     // ready: as granted
	Round    int              `json:"round,omitempty"`   // queued and all later ones
	Ahead    int              `json:"ahead,omitempty"`   // queued: acquisitions before this one
	Token    int64            `json:"token,omitempty"`   // granted and all later ones
	Deadline time.Time        `json:"deadline,omitzero"` // granted: the lease lasts at least until then
	Error    string           `json:"error,omitempty"`   // lost
}

type event string

const (
	eventReady     event = "ready"     // has a session, waits for the start
	eventQueued    event = "queued"    // has a place in the queue
	eventGranted   event = "granted"   // holds the lock
	eventReleasing event = "releasing" // has left its section, calls Unlock
	eventReleased  event = "released"  // Unlock returned
	eventLost      event = "lost"      // was told that it has lost the lock
	eventDone      event = "done"      // has done all rounds and closed its session
)
