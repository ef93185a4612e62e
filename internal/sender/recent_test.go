package sender

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recent
		require.False(t, r.Has([]string{"a"}))
		r.Add([]string{"a", "b"}, time.Second)
		require.True(t, r.Has([]string{"x", "b"}))
		require.False(t, r.Has([]string{"x"}))
		r.Forget([]string{"b"})
		require.False(t, r.Has([]string{"b"}))
		<-time.After(time.Second)
		require.False(t, r.Has([]string{"a"}))
		for i := range 3 * maxRecent {
			r.Add([]string{fmt.Sprint(i)}, time.Second)
		}
		require.Len(t, r.until, maxRecent)
		require.True(t, r.Has([]string{"0"}))
		<-time.After(time.Second)
		r.Add([]string{"new"}, time.Second)
		require.Len(t, r.until, 1, "those that are over make room")
	})
}
