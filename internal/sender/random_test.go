package sender

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/test/sample"
)

// An enemy is an etcd that is slow, loses requests and replies, and refuses some, as the dice say.
type enemy struct {
	mu   sync.Mutex
	dice *rand.Rand
}

func (e *enemy) draw(n int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dice.IntN(n)
}

func (e *enemy) before(ctx context.Context, r *pb.TxnRequest) error {
	pause := time.Duration(e.draw(20)) * time.Millisecond
	if e.draw(20) == 0 {
		pause = time.Duration(e.draw(3000)) * time.Millisecond
	}
	switch err := etcd.Sleep(ctx, pause); {
	case err != nil:
		return err
	case strings.Contains(r.String(), "secret"):
		return rpctypes.ErrGRPCPermissionDenied
	case len(r.Success) > 8 && r.Success[0].GetRequestTxn() != nil:
		return rpctypes.ErrGRPCTooManyOps
	}
	return e.after(ctx, nil)
}

func (e *enemy) after(context.Context, *pb.TxnRequest) error {
	if e.draw(15) == 0 {
		return errLost
	}
	return nil
}

// Whatever etcd does, and whenever callers leave: each call ends, at once when its ctx does, and says of its command no more
// than is known. Nothing stays in the Sender.
func TestSender_Random(t *testing.T) {
	for seed := range sample.Rounds(t, 60, 600) {
		onPost(t, func(p *post) {
			e := &enemy{dice: rand.New(rand.NewPCG(uint64(seed), 1))}
			there := map[string]int64{}
			for i := range 30 {
				key := fmt.Sprintf("%c/r%d", 'a'+i%4, i)
				there[key] = p.f.Write(key)
			}
			p.set(func() { p.before, p.after = e.before, e.after })
			over := errors.New("over")
			life, end := context.WithCancelCause(context.Background())
			call := func(key string, do func(ctx context.Context) (Reply, bool, error)) {
				start, patience := time.Duration(e.draw(200))*time.Millisecond, time.Hour
				if e.draw(3) == 0 {
					patience = time.Duration(e.draw(2000)) * time.Millisecond
				}
				p.calls.Go(func() {
					<-time.After(start)
					ctx, cancel := context.WithTimeout(p.Context(), patience)
					defer cancel()
					began := time.Now()
					r, ambiguous, err := do(ctx)
					assert.LessOrEqual(t, time.Since(began), min(patience, 10*time.Minute), key)
					p.mu.Lock()
					defer p.mu.Unlock()
					p.got[key], p.doubt[key], p.errs[key] = r, ambiguous, err
				})
			}
			names := []string{"a", "b", "c", "d", "secret"}
			for i := range 60 {
				key := fmt.Sprintf("%s/%d", names[e.draw(len(names))], i)
				c := put(key)
				if second := names[e.draw(len(names))]; e.draw(4) == 0 && c.Names[0] != second {
					c = put(key, fmt.Sprintf("%s/%d", second, i))
				}
				call(key, func(ctx context.Context) (Reply, bool, error) { return p.Do(ctx, life, c) })
			}
			for key, rev := range there {
				c := remove(key, rev)
				c.Patient, c.Crowd = e.draw(2) == 0, e.draw(2) == 0
				p.Offer(c)
				call(key, func(ctx context.Context) (Reply, bool, error) { return p.Await(ctx, life, c) })
			}
			if seed%3 == 0 {
				<-time.After(time.Duration(e.draw(500)) * time.Millisecond)
				p.end()
				end(over)
			}
			p.calls.Wait()
			keys := p.keys()
			p.mu.Lock()
			defer p.mu.Unlock()
			for key, err := range p.errs {
				_, isRemoval := there[key]
				switch {
				case p.doubt[key]:
				case isRemoval && err == nil:
					assert.True(t, p.got[key].Succeeded, "nobody else has removed %s", key)
					assert.NotContains(t, keys, key)
				case isRemoval:
					assert.Contains(t, keys, key, "%v", err)
				case err == nil:
					assert.True(t, p.got[key].Succeeded, key)
					assert.Contains(t, keys, key)
				default:
					assert.NotContains(t, keys, key, "%v", err)
				}
			}
			require.Len(t, p.errs, 90, "seed %d", seed)
			end(over)
		})
	}
}
