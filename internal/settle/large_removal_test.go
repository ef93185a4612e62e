package settle

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/queue"
)

// The entry of a Multi that was given up is too large to go with others. It is removed even if at each moment some
// request of its first name is on its way.
func TestRemovals_ALargeOneIsNotPassedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRow(t)
		r.Take("a") // an enqueue's
		var keys []string
		for i := range 32 {
			keys = append(keys, fmt.Sprintf("name%d/1", i))
		}
		rev := r.put("", keys...)
		next := r.enter("a/2")
		done := r.RemoveLater("a", r.Add("a", &Leaving{Keys: keys, Rev: rev, Next: []queue.Entry{next}}))
		synctest.Wait()
		for range 1000 {
			b := r.Take("a") // the next enqueue's, before the reply to the one before it
			require.Empty(t, b)
			r.Replied("a")
			synctest.Wait()
			select {
			case <-done:
				return
			default:
			}
		}
		t.Error("1,000 requests of the name have ended, and it is not removed")
	})
}
