#!/usr/bin/env bash
# Installs what the benchmark needs besides Go: redis-server and ZooKeeper, from Debian. It does not start them: the benchmark
# starts its own servers, on free loopback ports and with their data in temporary folders.
set -euo pipefail

missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
[[ -e /usr/share/java/zookeeper.jar ]] || missing+=(zookeeper)
command -v java >/dev/null || missing+=(default-jre-headless)
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

# Debian's packages start their services when they are installed, unless policy-rc.d forbids it.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
