// The pauses between two attempts to watch.

package holdwatch

import (
	"context"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
)

// refusedMax is the longest pause while etcd refuses to say whether an entry is there.
const refusedMax = 10 * time.Second

// pauses get longer while one attempt fails after the other: up to etcd.RetryMax, and up to refusedMax if etcd refuses the reads
// too. So a session does not ask for each of its holds twice a second, for as long as it has no rights on them.
type pauses struct{ failed, refused etcd.Backoff }

// pause is called after an attempt that lasted for that long and failed with err.
func (p *pauses) pause(ctx context.Context, lasted time.Duration, err error) {
	if lasted > etcd.RetryMax {
		p.failed.Reset() // it went well for a while
	}
	next := &p.failed
	if etcd.Refused(err) && !errors.Is(err, etcd.ErrWatch) { // of a watch the read says more
		p.refused.Min, p.refused.Max = etcd.RetryMax, refusedMax
		next = &p.refused
	} else {
		p.refused.Reset()
	}
	_ = next.Wait(ctx)
}
