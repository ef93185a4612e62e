package etcd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/etcdtest"
)

// A request is known not to have been sent if there was no connection to send it on, and only then.
func TestRequestError(t *testing.T) {
	for text, notSent := range map[string]bool{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                        true,
		`connection error: desc = "transport: authentication handshake failed: x509: unknown authority"`:                                      true,
		`connection error: desc = "error reading server preface: EOF"`:                                                                        true,
		`last connection error: connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: true,
		`context deadline exceeded while waiting for connections to become ready`:                                                             true,
		`connection error: desc = "transport: failed to write client preface: broken pipe"`:                                                   true,
		`write tcp 127.0.0.1:40764->127.0.0.1:2379: write: connection reset by peer`:                                                          true,
		`connection error: desc = "transport is closing"`:                                                                                     false,
		`connection error: desc = "error reading from server: EOF"`:                                                                           false,
		`connection error: desc = "keepalive ping failed to receive ACK within timeout"`:                                                      false,
	} {
		err := RequestError(t.Context(), status.Error(codes.Unavailable, text))
		require.ErrorIs(t, err, errNoConnection)
		require.Regexp(t, "^no connection to etcd: [a-z]", err.Error())
		if notSent {
			require.ErrorIs(t, err, ErrNotSent, text)
		} else {
			require.NotErrorIs(t, err, ErrNotSent, text)
		}
	}
	require.NotErrorIs(t, RequestError(t.Context(), status.Error(codes.Unavailable, "etcdserver: no leader")), errNoConnection)
}

// The limits of gRPC, and a service that is not there, as gRPC itself tells of them.
func TestRefusal_AsGRPCSaysIt(t *testing.T) {
	own := etcdtest.Start(t)
	client := func(send, receive int) *Client {
		c := NewClient(own.Client(t, etcdtest.WithClientConfig(func(c *clientv3.Config) {
			c.MaxCallSendMsgSize, c.MaxCallRecvMsgSize = send, receive
		})))
		c.NeverHedge() // a busy machine may take more than a second for a request of 3 MiB
		return c
	}
	big := strings.Repeat("x", 3<<20)
	put := func(c *Client, value string) (calls int, ambiguous bool, err error) {
		_, ambiguous, err = Do(t.Context(), c, Policy{}, func(ctx context.Context) (*clientv3.PutResponse, error) {
			calls++
			return c.Put(ctx, "key", value, clientv3.WithPrevKV())
		})
		return calls, ambiguous, err
	}

	calls, ambiguous, err := put(client(0, 0), big) // over the client's own limit
	require.Equal(t, 1, calls)
	require.True(t, RequestTooLarge(err) && Refused(err) && NotCarriedOut(err) && !ReplyTooLarge(err), err)
	require.False(t, ambiguous)

	calls, ambiguous, err = put(client(8<<20, 0), big) // over the limit of etcd's gRPC
	require.Equal(t, 1, calls)
	require.True(t, ReplyTooLarge(err) && Refused(err) && !NotCarriedOut(err) && !RequestTooLarge(err), err)
	require.True(t, ambiguous, "gRPC says it as of the reply")

	_, _, err = put(client(0, 0), big[:1<<20])
	require.NoError(t, err)
	calls, ambiguous, err = put(client(1<<10, 2<<10), "small") // whose reply has the value before
	require.Equal(t, 1, calls)
	require.True(t, ReplyTooLarge(err) && Refused(err) && !NotCarriedOut(err), err)
	require.True(t, ambiguous)
	got, err := own.Client(t).Get(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, "small", string(got.Kvs[0].Value), "it was carried out")

	err = own.Client(t).ActiveConnection().Invoke(t.Context(), "/etcdserverpb.KV/Nothing", &pb.PutRequest{}, &pb.PutResponse{})
	require.True(t, Refused(err) && NotCarriedOut(err), err)

	for _, passes := range []error{
		rpctypes.ErrTooManyRequests,
		status.Error(codes.ResourceExhausted, "a quota of somebody's"),
		status.Error(codes.Unavailable, "unexpected HTTP status code received from server: 503 (Service Unavailable)"),
		status.Error(codes.Unavailable, "unexpected HTTP status code received from server: 429 (Too Many Requests)"),
		status.Error(codes.Unavailable, "upstream connect error or disconnect/reset before headers"),
		status.Error(codes.Unavailable, `transport: received unexpected content`),
		fmt.Errorf("the owner's own words: rpc error: code = Unimplemented desc = "),
	} {
		require.False(t, Refused(passes), passes)
		require.Equal(t, passes, Explain(passes))
	}
	require.True(t, NotCarriedOut(rpctypes.ErrTooManyRequests))
	require.True(t, Refused(rpctypes.ErrNoSpace))
}
