#!/usr/bin/env bash
# Make this Debian machine a host for every sandbox back-end. Needs root. Run again at will.
#
#   deploy/sandbox-host.sh install    install Docker's engine, gVisor, bubblewrap and debootstrap from Debian's packages
#   deploy/sandbox-host.sh start      start a Docker engine that knows gVisor, unless one runs
#   deploy/sandbox-host.sh stop       stop the engine that `start` started
set -euo pipefail
run=/run/headrace-docker

case "${1:-}" in
  install)
    missing=0
    for program in dockerd runsc debootstrap bwrap; do
      command -v "$program" > /dev/null || missing=1
    done
    [ "$missing" = 1 ] || exit 0
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      docker.io iptables runsc debootstrap bubblewrap > /dev/null
    ;;
  start)
    if docker info --format '{{json .Runtimes}}' 2> /dev/null | grep -q runsc; then exit 0; fi
    if docker info > /dev/null 2>&1; then
      echo "error: a Docker engine runs that does not know gVisor: add the runtime of $0 to its daemon.json" >&2
      exit 1
    fi
    mkdir -p "$run"
    # Debian's runsc cannot make control groups on every host; the back-end puts its processes into groups of ours.
    cat > "$run/daemon.json" << 'JSON'
{"runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none", "--ignore-cgroups"]}}}
JSON
    setsid dockerd --config-file "$run/daemon.json" --pidfile "$run/pid" > "$run/log" 2>&1 < /dev/null &
    for _ in $(seq 120); do
      docker info > /dev/null 2>&1 && exit 0
      sleep 0.5
    done
    echo "error: the Docker engine did not come up; the end of $run/log:" >&2
    tail -n 20 "$run/log" >&2
    exit 1
    ;;
  stop)
    if [ -f "$run/pid" ]; then
      kill "$(cat "$run/pid")" 2> /dev/null || true
      for _ in $(seq 60); do [ -f "$run/pid" ] || break; sleep 0.5; done
    fi
    ;;
  *)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
