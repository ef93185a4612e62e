// A stand-in: etcd's tests module requires it for tests that do not run here, and it may not be had.
module go.etcd.io/etcd/cache/v3

go 1.26.0
