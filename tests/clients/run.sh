#!/bin/bash
# Runs the ioredis programs against a gateway, one data-core count after the other.
#
#   tests/clients/run.sh                 starts a cluster and gateways (ZG_GATEWAY, default build/zgateway; ZG_CORES, default "1 2 4")
#   ZG_DIRECT=1 tests/clients/run.sh     the same programs on plain servers
#
# Exit status 0 only if every test passed. Everything is started in a temporary directory and stopped by pid.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
gateway=${ZG_GATEWAY:-$root/build/zgateway}
cores=${ZG_CORES:-1 2 4}
cores=${cores//,/ }

dir=$(mktemp -d /tmp/zgateway-clients-XXXXXX)
gateway_pid=""
server_pid=""
clean() {
    [ -z "$gateway_pid" ] || kill "$gateway_pid" 2>/dev/null || true
    [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null || true
    "$root/scripts/dev-cluster.sh" stop --dir "$dir/cluster" || true
    wait
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM

cd "$here"
# The lock file holds no addresses: the machine's own registry is used. Nothing is fetched where the right versions are there.
if ! npm ls --silent >/dev/null 2>&1; then
    npm ci --no-audit --no-fund --loglevel=error >&2
fi

free_port() { # how many in a row, default one
    python3 -c 'import random, socket, sys
count = int(sys.argv[1])
while True:
    port = random.SystemRandom().randrange(22000, 32000)
    try:
        for index in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port + index))
    except OSError:
        continue
    print(port)
    break' "${1:-1}"
}
wait_ready() { # port pid log
    local tries
    for tries in $(seq 200); do
        if redis-cli -p "$1" ping 2>/dev/null | grep -q PONG && redis-cli -p "$1" info 2>/dev/null | grep -q '^loading:0'; then
            return 0
        fi
        kill -0 "$2" 2>/dev/null || break
        sleep 0.1
    done
    cat "$3" >&2
    return 1
}

"$root/scripts/dev-cluster.sh" start --dir "$dir/cluster" >/dev/null
first=$(head -n 1 "$dir/cluster/ports")
seeds=$(sed 's/^/127.0.0.1:/' "$dir/cluster/ports" | paste -sd,)
failed=0

run_tests() { # port of standalone presentation, port of cluster presentation
    # Node 18 and later: the runner's own closing lines are what scripts/test.sh counts.
    ZG_PORT=$1 ZG_CLUSTER_PORT=$2 ZG_IS_DIRECT=${ZG_DIRECT:-0} node --test --test-reporter=tap --test-concurrency=1 "$here"/*.test.js </dev/null || failed=1
}

if [ "${ZG_DIRECT:-0}" = 1 ]; then
    port=$(free_port)
    redis-server --port "$port" --save "" --dir "$dir" >"$dir/redis.log" 2>&1 </dev/null &
    server_pid=$!
    wait_ready "$port" "$server_pid" "$dir/redis.log"
    run_tests "$port" "$first"
    exit $failed
fi

[ -x "$gateway" ] || { echo "$gateway does not exist: build it first" >&2; exit 1; }
start_gateway() { # cores, further arguments
    port=$(free_port $(($1 + 1)))
    log=$dir/zgateway-$1.log
    "$gateway" --listen "127.0.0.1:$port" --cluster "$seeds" --data-cores "$1" --set use_cases.timeout=20s "${@:2}" >"$log" 2>&1 </dev/null &
    gateway_pid=$!
    wait_ready "$port" "$gateway_pid" "$log"
}
stop_gateway() {
    kill "$gateway_pid"
    status=0
    wait "$gateway_pid" || status=$?
    gateway_pid=""
    if [ $status != 0 ]; then
        echo "# the gateway ended with status $status" >&2
        tail -n 30 "$log" >&2
        failed=1
    fi
}

for count in $cores; do
    echo "# $count data cores"
    start_gateway "$count"
    run_tests "$port" "$port"
    stop_gateway
done
echo "# a port a core"
start_gateway 4 --set listeners.port_per_core=true --set cores.balance=false
ZG_CLUSTER_PORT=$port ZG_CORES_COUNT=4 node --test --test-reporter=tap "$here/port_per_core.js" </dev/null || failed=1
stop_gateway
exit $failed
