#!/bin/sh
# Makes the role in etcd that suffices for locks and elections below two prefixes, and
# a user with that role, whom etcd knows by the CN of a client certificate (etcd runs
# with --client-cert-auth). It can be run again, also to add a prefix. It needs
# etcdctl and the rights of root in etcd:
#
#   ETCDCTL_ENDPOINTS=... ETCDCTL_USER=root:... deploy/etcd/role.sh
#
# Leases need no right of their own; but etcd checks the rights on all keys of a lease when it
# is renewed, so take no right away while locks below its prefix are held. For people who only look (etcdlock ls, show,
# doctor), `read` in the place of `readwrite` is enough.
set -eu
etcdctl role get locks >/dev/null 2>&1 || etcdctl role add locks
etcdctl role grant-permission locks --prefix=true readwrite cron/
etcdctl role grant-permission locks --prefix=true readwrite jobs/
etcdctl user get cron >/dev/null 2>&1 || etcdctl user add --no-password cron
etcdctl user grant-role cron locks
