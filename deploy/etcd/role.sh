#!/bin/sh
# The role in etcd that suffices for locks and elections below a prefix, and a user
# with it, who is known by the CN of a client certificate (etcd runs with
# --client-cert-auth). Needs etcdctl, and to be root in etcd:
#
#   ETCDCTL_ENDPOINTS=... ETCDCTL_USER=root:... deploy/etcd/role.sh
#
# Leases need no right of their own. For people who only look (etcdlock ls, show,
# doctor), `read` in the place of `readwrite` is enough.
set -eu
etcdctl role add locks
etcdctl role grant-permission locks --prefix=true readwrite cron/
etcdctl role grant-permission locks --prefix=true readwrite jobs/
etcdctl user add --no-password cron
etcdctl user grant-role cron locks
