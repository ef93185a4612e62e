// The requests about a lease.

package etcd

import (
	"context"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// hasConnection is false for a client whose etcd runs in this process, such as v3client.New makes: there is no
// connection to send a request on, beside clientv3's own methods.
func (c *Client) hasConnection() bool { return c.ActiveConnection() != nil }

// GrantOnce asks once for a lease with this ID. Unlike the client's own Grant it does not repeat the request
// until ctx ends, and says why there is no connection. Within the process of etcd, etcd chooses the ID.
func (c *Client) GrantOnce(ctx context.Context, id clientv3.LeaseID, seconds int64) (granted clientv3.LeaseID, ttl int64, err error) {
	before := c.shown.revision.Load()
	if !c.hasConnection() {
		resp, err := c.Grant(ctx, seconds)
		if err != nil {
			return id, 0, err
		}
		c.proves(resp.ResponseHeader, before)
		return resp.ID, resp.TTL, nil
	}
	resp, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds, ID: int64(id)})
	if err == nil {
		c.proves(resp.GetHeader(), before)
	}
	return id, resp.GetTTL(), RequestError(ctx, err)
}

// RevokeOnce asks once to revoke a lease. Unlike the client's own Revoke it does not repeat the request 40 times a second
// while what answers in etcd's place says that etcd is unavailable.
func (c *Client) RevokeOnce(ctx context.Context, id clientv3.LeaseID) error {
	if !c.hasConnection() {
		_, err := c.Revoke(ctx, id)
		return err
	}
	_, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)})
	return RequestError(ctx, err)
}

// plainLease is the type of etcd's own Lease.
var plainLease = reflect.TypeOf(clientv3.NewLeaseFromLeaseClient(nil, nil, 0))

// timeToLiveOnce asks once after a lease, as RevokeOnce does, for the client's own TimeToLive repeats the request just so. But the
// user may have put another Lease in the place of etcd's own, which takes a prefix off the keys, for one: that is asked. So is the
// client's own TimeToLive if the reply is too large for gRPC's usual limit, which it raises.
func (c *Client) timeToLiveOnce(ctx context.Context, id clientv3.LeaseID, keys bool) (*clientv3.LeaseTimeToLiveResponse, error) {
	if reflect.TypeOf(c.Lease) == plainLease && c.hasConnection() {
		r, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(id), Keys: keys})
		if err == nil {
			return &clientv3.LeaseTimeToLiveResponse{ResponseHeader: r.GetHeader(), ID: id, TTL: r.TTL, GrantedTTL: r.GrantedTTL, Keys: r.Keys}, nil
		}
		if err = RequestError(ctx, err); !ReplyTooLarge(err) {
			return nil, err
		}
	}
	var opts []clientv3.LeaseOption
	if keys {
		opts = append(opts, clientv3.WithAttachedKeys())
	}
	return c.Client.TimeToLive(ctx, id, opts...)
}

// renewInProcess asks once to renew a lease where etcd runs in this process.
func (c *Client) renewInProcess(ctx context.Context, id clientv3.LeaseID) (ttl int64, err error) {
	before := c.shown.revision.Load()
	resp, err := c.KeepAliveOnce(ctx, id)
	if err != nil {
		return 0, err
	}
	c.hintsOfLease(ctx, resp.ResponseHeader, before, resp.TTL <= 0)
	return resp.TTL, nil
}
