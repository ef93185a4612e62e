// While the Client drains.

package sender

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// While the Client drains, a removal that goes through waits for no request that the drain holds back.
func TestDrain_BesideACommandThatGoesAlone(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		goOn := p.holdBack()
		p.put("a/2") // on its way
		r := p.offer(true, "a/1")
		r.Through = true
		p.await(p.Context(), r) // waits for the reply to it
		answered := make(chan struct{})
		p.calls.Go(func() { p.etcd.Drain(5*time.Second, answered, nil)() })
		synctest.Wait()
		many := []string{"a/3"}
		for i := range 20 {
			many = append(many, fmt.Sprintf("b%d/1", i))
		}
		p.put(many...) // goes alone, and is held back
		began := time.Now()
		goOn()
		p.requests()
		for len(p.f.Keys("a/1")) > 0 {
			<-time.After(10 * time.Millisecond)
		}
		took := time.Since(began)
		close(answered)
		p.calls.Wait()
		require.Less(t, took, time.Second, "the removal was sent when the drain was over")
	})
}

// While the Client drains, an enqueue that waits goes along with no removal that goes through: its entry would stay for Adopt.
func TestDrain_SendsNoEnqueues(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		goOn := p.holdBack()
		p.fill()
		rev := p.f.Keys("a/1")[0].CreateRevision
		c := remove("a/1", rev)
		c.Through = true
		p.send(p.Context(), "-a/1", c)
		p.put("b/1")
		resumed := make(chan struct{})
		p.calls.Go(func() { resume := p.etcd.Drain(5*time.Second, resumed, nil); resume() })
		synctest.Wait()
		goOn()
		there := len(p.f.Keys("b/1")) > 0
		close(resumed)
		p.calls.Wait()
		require.False(t, there, "an enqueue was sent while the client drains")
	})
}

// While the Client drains, an enqueue that begins takes no removal along: the removal would let the enqueue through.
func TestDrain_EnqueueTakesNoRemovalAlong(t *testing.T) {
	onPost(t, func(p *post) {
		p.enter("a/1")
		r := p.offer(true, "a/1")
		r.Through = true
		answered := make(chan struct{})
		p.calls.Go(func() { p.etcd.Drain(5*time.Second, answered, nil)() })
		synctest.Wait()
		p.put("a/2")
		synctest.Wait()
		there := len(p.f.Keys("a/2")) > 0
		p.await(p.Context(), r)
		synctest.Wait()
		removed := len(p.f.Keys("a/1")) == 0
		close(answered)
		p.calls.Wait()
		require.False(t, there, "the enqueue was sent")
		require.True(t, removed, "the removal goes by itself")
	})
}
