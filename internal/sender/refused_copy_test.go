package sender

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// One copy of a request is carried out, and answered: its removal has found nothing, so that answer waits for the other
// copy. Etcd refuses that, since the rights on a name were taken away meanwhile, and refuses the command by itself too. Its
// caller is told that it may have been carried out, as it was.
func TestSender_ACopyIsRefused(t *testing.T) {
	onPost(t, func(p *post) {
		goOn := p.holdBack()
		p.fill()
		p.send(p.Context(), "not there", remove("b/1", 100))
		p.put("secret/1")
		release, copies := make(chan struct{}), 0
		p.set(func() {
			p.before = func(_ context.Context, r *pb.TxnRequest) error {
				if len(keysOf(r)) != 2 && keysOf(r)[0] != "secret/1" {
					return nil
				}
				p.mu.Lock()
				copies++
				first := copies == 1
				p.mu.Unlock()
				if first {
					return nil
				}
				<-release
				return rpctypes.ErrGRPCPermissionDenied
			}
			p.after = func(_ context.Context, r *pb.TxnRequest) error {
				if len(keysOf(r)) == 2 {
					<-time.After(400 * time.Millisecond) // until there is another copy
				}
				return nil
			}
		})
		goOn()
		<-time.After(450 * time.Millisecond)
		synctest.Wait()
		require.Contains(t, p.keys(), "secret/1")
		close(release)
		p.calls.Wait()
		require.True(t, p.errs["secret/1"] == nil || p.doubt["secret/1"], "it is in etcd: %v", p.errs["secret/1"])
	})
}
