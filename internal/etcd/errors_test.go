package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
		`write tcp 127.0.0.1:40764->127.0.0.1:2379: write: connection reset by peer`:                                                          false,
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
