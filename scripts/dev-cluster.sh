#!/bin/bash
# A real Redis or Valkey Cluster on loopback, for development and tests.
#
#   scripts/dev-cluster.sh start  --dir D [--base-port P] [--primaries N] [--replicas M] [--server BIN]
#   scripts/dev-cluster.sh status --dir D
#   scripts/dev-cluster.sh stop   --dir D
#
# start   Starts N primaries (default 3) with M replicas each (default 1) on ports P, P+1, ... and returns when every node says
#         cluster_state:ok and every replica is connected. With --base-port 0 (the default) free ports are found, and others are
#         tried when somebody takes one meanwhile. D must not exist yet, or be empty.
# stop    Ends the servers by their process ids, waits for them, removes D. A cluster that is not there is no error.
# status  Prints a line a node; exit status 0 only where all are well.
#
# D/ports holds the ports in use, primaries first, one a line. D/PORT/ is a node's directory: pid, log, redis.conf, nodes.conf.
# Servers run with DEBUG enabled and without persistence. Ports are below 22,000: the bus port is the port plus 10,000, and both
# must stay below 32,768, where the ports of outgoing connections begin.
set -euo pipefail

say() { printf 'dev-cluster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,17s/^# \{0,1\}//p' "$0"; }

action=${1:-}
[ $# -gt 0 ] && shift
dir="" base_port=0 primaries=3 replicas=1 server=redis-server
while [ $# -gt 0 ]; do
    case "$1" in
    --dir | --base-port | --primaries | --replicas | --server) [ $# -ge 2 ] || die "$1 needs a value" ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1' (--help)" ;;
    esac
    case "$1" in
    --dir) dir=$2 ;;
    --base-port) base_port=$2 ;;
    --primaries) primaries=$2 ;;
    --replicas) replicas=$2 ;;
    --server) server=$2 ;;
    esac
    shift 2
done
for number in "$base_port" "$primaries" "$replicas"; do
    [[ "$number" =~ ^[0-9]+$ ]] || die "'$number' is not a number"
done
case "$action" in
start | stop | status) ;;
-h | --help | help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac
[ -n "$dir" ] || die "--dir is needed"

# The pid file is trusted only where that process still runs in the node's directory: process ids are used again.
node_pid() {
    local pid
    pid=$(cat "$dir/$1/pid" 2>/dev/null) || return 1
    [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$(readlink -f "$dir/$1")" ] || return 1
    echo "$pid"
}

ports() { cat "$dir/ports" 2>/dev/null || true; }
cli() { local port=$1; shift; timeout 5 "$client" -h 127.0.0.1 -p "$port" "$@"; }

stop_all() {
    local port pid pids=()
    for port in $(ports); do
        # SIGCONT first: a test may have stopped the process.
        if pid=$(node_pid "$port"); then
            kill -CONT "$pid" 2>/dev/null || true
            kill -TERM "$pid" 2>/dev/null || true
            pids+=("$port")
        fi
    done
    local tries=0
    while [ ${#pids[@]} -gt 0 ]; do
        local left=()
        for port in "${pids[@]}"; do
            if pid=$(node_pid "$port"); then
                left+=("$port")
                [ $tries -lt 50 ] || kill -KILL "$pid" 2>/dev/null || true
            fi
        done
        pids=(${left[@]+"${left[@]}"})
        [ $tries -lt 100 ] || die "processes of ports ${pids[*]} do not end"
        tries=$((tries + 1))
        [ ${#pids[@]} -eq 0 ] || sleep 0.1
    done
}

find_client() {
    command -v "$server" >/dev/null || die "no server program '$server' (scripts/setup.sh run)"
    local beside
    beside=$(dirname "$(command -v "$server")")/$(basename "$server" | sed 's/-server$/-cli/')
    client=$(command -v redis-cli || command -v "$beside" || true)
    [ -n "$client" ] || die "no redis-cli (scripts/setup.sh run)"
}

port_is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

pick_base() {
    local count=$1 tries base port
    for tries in $(seq 100); do
        base=$((10000 + (RANDOM * 32768 + RANDOM) % 11900))
        for port in $(seq $base $((base + count - 1))); do
            port_is_free "$port" && port_is_free $((port + 10000)) || continue 2
        done
        echo "$base"
        return 0
    done
    die "no free ports between 10,000 and 22,000"
}

start_node() {
    local port=$1
    mkdir -p "$dir/$port"
    {
        echo "port $port"
        echo "bind 127.0.0.1"
        echo "dir $(readlink -f "$dir/$port")"
        echo "cluster-enabled yes"
        echo "cluster-config-file nodes.conf"
        echo "cluster-node-timeout 3000"
        echo "cluster-allow-replica-migration no"
        echo "save \"\""
        echo "appendonly no"
        echo "maxclients 10000"
        echo "repl-diskless-sync yes"
        echo "repl-diskless-sync-delay 0"
        echo "client-output-buffer-limit replica 0 0 0"
        case "$($server --version)" in
        *v=6.*) ;;
        *) echo "enable-debug-command yes" ;;
        esac
    } >"$dir/$port/redis.conf"
    # A session of its own, so that Ctrl-C in the terminal ends the script that started us and not the servers behind its back.
    (cd "$dir/$port" && exec setsid "$server" redis.conf >log 2>&1 </dev/null) &
    echo $! >"$dir/$port/pid"
    disown
}

wait_for() { # seconds, command...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}

node_answers() { [ "$(cli "$1" ping 2>/dev/null)" = PONG ]; }
node_knows() { [ "$(cli "$1" cluster nodes 2>/dev/null | grep -c connected)" = "$2" ]; }
node_is_ok() {
    local info
    info=$(cli "$1" cluster info 2>/dev/null) || return 1
    [[ "$info" == *cluster_state:ok* ]] && [[ "$info" == *cluster_slots_ok:16384* ]]
}
replica_is_connected() { [[ "$(cli "$1" info replication 2>/dev/null)" == *master_link_status:up* ]]; }
# Every node must know every replica as one, or its CLUSTER SLOTS is not complete yet.
replicas_are_known() { [ "$(cli "$1" cluster nodes 2>/dev/null | grep -c ' slave \| myself,slave ')" = "$2" ]; }

# Returns 1 where a port was taken: the caller may try elsewhere.
start_at() {
    local base=$1 total=$((primaries * (1 + replicas))) port
    local all first=$base
    all=$(seq "$base" $((base + total - 1)))
    printf '%s\n' $all >"$dir/ports"
    for port in $all; do
        start_node "$port"
    done
    for port in $all; do
        local tries=0
        until node_answers "$port"; do
            node_pid "$port" >/dev/null || { grep -h -i -m 1 'bind\|address' "$dir/$port/log" >&2 || tail -n 3 "$dir/$port/log" >&2; return 1; }
            tries=$((tries + 1))
            [ $tries -lt 150 ] || die "the server on port $port does not answer: $(tail -n 3 "$dir/$port/log")"
            sleep 0.1
        done
        # Somebody else's server may answer on the port while ours could not bind.
        node_pid "$port" >/dev/null || return 1
    done
    local index=0 from to
    for port in $(seq "$base" $((base + primaries - 1))); do
        from=$((16384 * index / primaries))
        index=$((index + 1))
        to=$((16384 * index / primaries - 1))
        cli "$port" cluster addslotsrange $from $to >/dev/null 2>&1 || cli "$port" cluster addslots $(seq $from $to) >/dev/null
    done
    index=0
    for port in $all; do
        index=$((index + 1))
        cli "$port" cluster set-config-epoch $index >/dev/null
        [ "$port" = "$first" ] || cli "$first" cluster meet 127.0.0.1 "$port" >/dev/null
    done
    for port in $all; do
        wait_for 30 node_knows "$port" "$total" || die "the node on port $port does not know the others"
    done
    index=0
    for port in $(seq $((base + primaries)) $((base + total - 1))); do
        local id
        id=$(cli $((base + index % primaries)) cluster myid)
        index=$((index + 1))
        [ "$(cli "$port" cluster replicate "$id")" = OK ] || die "the node on port $port refuses to be a replica"
    done
    for port in $all; do
        wait_for 30 node_is_ok "$port" || die "the node on port $port does not reach cluster_state:ok"
        wait_for 30 replicas_are_known "$port" $((total - primaries)) || die "the node on port $port does not know the replicas"
    done
    for port in $(seq $((base + primaries)) $((base + total - 1))); do
        wait_for 30 replica_is_connected "$port" || die "the replica on port $port is not connected"
    done
}

start() {
    find_client
    [ "$primaries" -ge 1 ] || die "--primaries must be at least 1"
    if [ -e "$dir" ] && [ -n "$(ls -A "$dir" 2>/dev/null)" ]; then
        die "$dir exists and is not empty (stop the cluster in it first)"
    fi
    mkdir -p "$dir"
    dir=$(readlink -f "$dir")
    is_started=false
    trap '$is_started || { stop_all; rm -rf "$dir"; }' EXIT
    trap 'exit 130' INT TERM
    local total=$((primaries * (1 + replicas))) tries base
    if [ "$base_port" != 0 ]; then
        [ $((base_port + total)) -le 55536 ] || die "ports must be below 55,536: the bus port is the port plus 10,000"
        start_at "$base_port" || die "ports $base_port to $((base_port + total - 1)) (and those plus 10,000) are not all free"
    else
        for tries in 1 2 3 4 5 6; do
            [ $tries -lt 6 ] || die "no ports to be had"
            base=$(pick_base "$total")
            start_at "$base" && break
            say "a port from $base on was taken, trying elsewhere"
            stop_all
            rm -rf "${dir:?}"/*
        done
    fi
    is_started=true
    echo "ports: $(tr '\n' ' ' <"$dir/ports")"
}

status() {
    find_client
    local port bad=0 state
    [ -n "$(ports)" ] || die "no cluster in $dir"
    for port in $(ports); do
        if ! node_pid "$port" >/dev/null; then
            state="not running"
            bad=1
        elif ! node_is_ok "$port"; then
            state="running, cluster not ok"
            bad=1
        else
            state="ok, $(cli "$port" role | head -n 1)"
        fi
        echo "127.0.0.1:$port $state"
    done
    return $bad
}

case "$action" in
start) start ;;
status) status ;;
stop)
    if [ -d "$dir" ] && [ -e "$dir/ports" ]; then
        stop_all
        rm -rf "$dir"
    elif [ -d "$dir" ] && [ -z "$(ls -A "$dir")" ]; then
        rmdir "$dir"
    elif [ -d "$dir" ]; then
        die "$dir holds no cluster: left alone"
    fi
    ;;
esac
