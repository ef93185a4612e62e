#!/bin/sh
# Makes for each workload a role in etcd that suffices for locks and elections below one
# prefix, and a user with that role, whom etcd knows by the CN of a client certificate
# (etcd runs with --client-cert-auth). So none can break the locks of another. It can be
# run again, also to add a workload. It needs etcdctl and the rights of root in etcd:
#
#   ETCDCTL_ENDPOINTS=... ETCDCTL_USER=root:... deploy/etcd/role.sh
#
# Leases need no right of their own; but etcd checks the rights on all keys of a lease when
# it is renewed, so take no right away while locks below its prefix are held. For people
# who only look (etcdlock ls, show, doctor), `read` in the place of `readwrite` is enough.
set -eu
workload() { # NAME PREFIX
	etcdctl role get "$1" >/dev/null 2>&1 || etcdctl role add "$1"
	etcdctl role grant-permission "$1" --prefix=true readwrite "$2"
	etcdctl user get "$1" >/dev/null 2>&1 || etcdctl user add --no-password "$1"
	etcdctl user grant-role "$1" "$1"
}
workload cron cron/
workload report jobs/
case "$(etcdctl auth status 2>&1)" in
*"Authentication Status: false"*)
	echo "role.sh: authentication is off: these roles do nothing yet. Make the user root, and then: etcdctl auth enable" >&2 ;;
esac
