// A stream on which one lease is renewed after the other.

package etcd

import (
	"context"
	"errors"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A keepAliveStream is a stream of a KeepAlive. It has one user at a time, and a goroutine that reads.
type keepAliveStream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel  context.CancelFunc
	replies chan *pb.LeaseKeepAliveResponse
	ended   chan struct{} // closed when err is set
	err     error
	asked   bool // whether it leads to a proxy
	n       int  // counts the streams
}

// renew renews a lease. It ends with the stream.
func (s *keepAliveStream) renew(id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	if err := s.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	select {
	case resp := <-s.replies:
		return resp, nil
	case <-s.ended: // which says why, also if Send returned io.EOF
		return nil, s.err
	}
}
