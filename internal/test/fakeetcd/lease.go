package fakeetcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lease knows of a lease what its renewal would tell, and which keys it has.
type lease struct {
	clientv3.Lease // what is not faked panics
	f              *Server
	renew          func(context.Context) (ttl int64, err error)
}

func (l lease) TimeToLive(ctx context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	ttl, err := l.renew(ctx)
	resp := &clientv3.LeaseTimeToLiveResponse{ID: id, GrantedTTL: ttl}
	for _, kv := range l.f.Keys("") {
		if kv.Lease == int64(id) {
			resp.Keys = append(resp.Keys, kv.Key)
		}
	}
	return resp, err
}
