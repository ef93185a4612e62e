package harness

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// GRPCProxy serves what `etcd grpc-proxy start` serves, on a port of this process, until the test ends. The proxy asks
// etcd with the client up. Clients reach the proxy with etcdtest.Attach(endpoint).Client.
func GRPCProxy(t testing.TB, up *clientv3.Client) (endpoint string) {
	t.Helper()
	kv, _ := grpcproxy.NewKvProxy(up)
	watch, _ := grpcproxy.NewWatchProxy(up.Ctx(), zap.NewNop(), up)
	cluster, _ := grpcproxy.NewClusterProxy(zap.NewNop(), up, "", "")
	lease, _ := grpcproxy.NewLeaseProxy(up.Ctx(), up)
	server := grpc.NewServer()
	pb.RegisterKVServer(server, kv)
	pb.RegisterWatchServer(server, watch)
	pb.RegisterClusterServer(server, cluster)
	pb.RegisterLeaseServer(server, lease)
	pb.RegisterMaintenanceServer(server, grpcproxy.NewMaintenanceProxy(up))
	pb.RegisterAuthServer(server, grpcproxy.NewAuthProxy(up))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := Async(func() error { return server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, Result(t, served))
	})
	return "http://" + listener.Addr().String()
}
