package demo

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// A job is what the demo tells a worker process: the first line of its
// standard input. A second line, whatever it says, is the start. When the input
// ends, so does the worker: whoever started it is gone.
type job struct {
	Worker  string         `json:"worker"`
	Etcd    connect.Config `json:"etcd"`
	Lock    lockPaths      `json:"lock"`
	Mode    mode           `json:"mode"`
	TTL     time.Duration  `json:"ttl"`
	Rounds  int            `json:"rounds"`
	Section time.Duration  `json:"section"`           // the time in the critical section
	Pause   time.Duration  `json:"pause"`             // at most, between two rounds
	HangIn  int            `json:"hang_in,omitempty"` // the round in which it never leaves the section
}

// mode is what a worker does with its lock.
type mode string

const (
	modeMutex mode = "mutex"
	modeRead  mode = "read"
	modeWrite mode = "write"
)

// A report is what a worker process says: a line of its standard output.
type report struct {
	Event    event            `json:"event"`
	At       time.Time        `json:"at"`
	Lease    clientv3.LeaseID `json:"lease,omitempty"`   // ready
	TTL      time.Duration    `json:"ttl,omitempty"`     // ready: as granted
	Round    int              `json:"round,omitempty"`   // queued and all that follow
	Ahead    int              `json:"ahead,omitempty"`   // queued: acquisitions before this one
	Token    int64            `json:"token,omitempty"`   // granted and all that follow
	Deadline time.Time        `json:"deadline,omitzero"` // granted: the lease is good until then at least
	Error    string           `json:"error,omitempty"`   // lost
}

type event string

const (
	eventReady     event = "ready"     // has a session, waits for the start
	eventQueued    event = "queued"    // has a place in the queue
	eventGranted   event = "granted"   // holds the lock
	eventReleasing event = "releasing" // has left its section, calls Unlock
	eventReleased  event = "released"  // Unlock returned
	eventLost      event = "lost"      // was told that it does not hold the lock anymore
	eventDone      event = "done"      // has done all rounds and closed its session
)
