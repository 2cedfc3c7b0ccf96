#!/bin/bash
# From a clone to a running gateway: installs what is missing, builds, starts a real Redis Cluster of three primaries and three replicas and
# a gateway with two data cores in front of it, and puts ten seconds of load through it with live figures.
#
#   scripts/quickstart.sh            stays until Ctrl-C and says how to connect
#   scripts/quickstart.sh --once     ends after the load; exit status 0 only if no error was seen
#   scripts/quickstart.sh --port P   port of the gateway; default 6380, or a free one where that is taken
#   scripts/quickstart.sh --cores N  data cores; default 2
#
# It leaves nothing behind: no process and no directory (but the build in build/).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() { printf '%s\n' "$*"; }
die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

once=false port="" cores=2 seconds=10
while [ $# -gt 0 ]; do
    case "$1" in
    --once) once=true ;;
    --port) port=${2:?a port}; shift ;;
    --cores) cores=${2:?a number}; shift ;;
    --seconds) seconds=${2:?a number}; shift ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
    shift
done

dir="" gateway_pid="" load_pids=()
gateway_status=0
stop_gateway() {
    if [ -n "$gateway_pid" ]; then
        kill -TERM "$gateway_pid" 2>/dev/null || true
        gateway_status=0
        wait "$gateway_pid" || gateway_status=$?
        gateway_pid=""
    fi
}
clean() {
    local pid
    for pid in ${load_pids[@]+"${load_pids[@]}"}; do
        kill "$pid" 2>/dev/null || true
    done
    stop_gateway
    if [ -n "$dir" ]; then
        scripts/dev-cluster.sh stop --dir "$dir/cluster" || true
        wait 2>/dev/null || true
        rm -rf "$dir"
    fi
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "1. What is needed"
scripts/setup.sh run

say "2. Build"
[ -e build/build.ninja ] || meson setup build >/dev/null
ninja -C build zgateway >/dev/null || ninja -C build zgateway
say "   $(build/zgateway --version)"

say "3. A Redis Cluster: three primaries, three replicas"
dir=$(mktemp -d /tmp/zgateway-quickstart-XXXXXX)
scripts/dev-cluster.sh start --dir "$dir/cluster" --primaries 3 --replicas 1 >/dev/null
seeds=$(sed 's/^/127.0.0.1:/' "$dir/cluster/ports" | paste -sd,)
say "   $seeds"

is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if [ -z "$port" ]; then
    port=6380
    while ! is_free "$port"; do
        port=$((22000 + RANDOM % 10000))
    done
fi
say "4. The gateway with $cores data cores on 127.0.0.1:$port"
build/zgateway --listen "127.0.0.1:$port" --cluster "$seeds" --data-cores "$cores" >"$dir/zgateway.log" 2>&1 </dev/null &
gateway_pid=$!
info() { timeout 5 redis-cli -p "$port" info all 2>/dev/null | tr -d '\r'; }
tries=0
until [ "$(timeout 2 redis-cli -p "$port" ping 2>/dev/null)" = PONG ] && info | grep -q '^loading:0'; do
    kill -0 "$gateway_pid" 2>/dev/null || { cat "$dir/zgateway.log" >&2; die "the gateway ended"; }
    tries=$((tries + 1))
    [ $tries -lt 150 ] || { cat "$dir/zgateway.log" >&2; die "the gateway is not ready after 15 seconds"; }
    sleep 0.1
done

say "5. $seconds seconds of load: redis-benchmark, GET and SET, 50 clients without and 50 with pipelining"
errors=0
# Endless lists of tests (-l), ended by us: so the load lasts as long as the figures do.
start_load() {
    redis-benchmark -p "$port" -c 50 -r 100000 -d 100 -t set,get -n 100000 -l -q "$@" >"$dir/load-${#load_pids[@]}.log" 2>&1 </dev/null &
    load_pids+=($!)
}
start_load
start_load -P 16
field() { printf '%s\n' "$1" | sed -n "s/^$2://p" | head -n 1; }
figure() { local value; value=$(field "$1" "zgateway_$2"); printf '%s' "${value:--}"; }
# A counter that is missing is no zero: it would hide errors.
counter() {
    local value
    value=$(figure "$1" "$2")
    [[ "$value" =~ ^[0-9]+$ ]] || { echo "INFO does not show zgateway_$2" >&2; return 1; }
    printf '%s' "$value"
}
say "   p50 and p99: from a command's arrival to its reply, since the start. commands/batch: commands that travel in one send to a node, in this second."
say "   second  commands/s   p50 us   p99 us   commands/batch   clients   backend connections   errors"
text=$(info)
last=$(field "$text" total_commands_processed) last_legs=$(counter "$text" legs_total) last_batches=$(counter "$text" batches_total)
last_at=$(date +%s%N)
for second in $(seq "$seconds"); do
    sleep 1
    text=$(info)
    kill -0 "$gateway_pid" 2>/dev/null || { cat "$dir/zgateway.log" >&2; die "the gateway ended under load"; }
    [ -n "$text" ] || die "INFO was not answered"
    now=$(field "$text" total_commands_processed)
    now_at=$(date +%s%N)
    own=$(counter "$text" request_errors_total)
    timeouts=$(counter "$text" request_timeouts_total)
    refused=$(counter "$text" overload_refused_total)
    errors=$((own + timeouts + refused))
    legs=$(counter "$text" legs_total)
    batches=$(counter "$text" batches_total)
    per_batch=-
    [ "$batches" = "$last_batches" ] || per_batch=$(awk "BEGIN { printf \"%.1f\", ($legs - $last_legs) / ($batches - $last_batches) }")
    printf '   %6d %11d %8s %8s %16s %9s %21s %8d\n' "$second" $(((now - last) * 1000000000 / (now_at - last_at))) "$(figure "$text" request_p50_us)" \
        "$(figure "$text" request_p99_us)" "$per_batch" "$(figure "$text" clients)" "$(figure "$text" links)" "$errors"
    if [ "$now" -le "$last" ]; then
        say "   no command was processed in this second"
        errors=$((errors + 1))
    fi
    last=$now last_at=$now_at last_legs=$legs last_batches=$batches
done
for pid in "${load_pids[@]}"; do
    if ! kill "$pid" 2>/dev/null; then
        say "   the load ended early:"
        errors=$((errors + 1))
    fi
    wait "$pid" 2>/dev/null || true
done
load_pids=()
if grep -h -i 'error\|refused\|closed' "$dir"/load-*.log | head -n 5; then
    errors=$((errors + 1))
fi
# What was written is read back, through the gateway and from the cluster itself.
redis-cli -p "$port" set quickstart works >/dev/null
first=$(head -n 1 "$dir/cluster/ports")
if [ "$(redis-cli -p "$port" get quickstart)" != works ] || [ "$(redis-cli -c -p "$first" get quickstart)" != works ]; then
    say "   a key that was written is not read back"
    errors=$((errors + 1))
fi
if grep -E 'level=(error|warning)' "$dir/zgateway.log" | head -n 5; then
    say "   (lines of the gateway's log)"
fi
say "   errors seen: $errors"

if ! $once; then
    say
    say "Connect:   redis-cli -p $port                     any Redis client, as to one server"
    say "           redis-cli -c -p $port                  or as to a cluster"
    say "           redis-benchmark -p $port -t get,set -P 16"
    say "Look:      redis-cli -p $port info zgateway       docs/metrics.md says what each line means"
    say "           tail -f $dir/zgateway.log"
    say "The cluster's nodes: $seeds"
    say "Ctrl-C ends everything."
    while kill -0 "$gateway_pid" 2>/dev/null; do
        sleep 1 &
        wait $! || true
    done
    die "the gateway ended: $(tail -n 5 "$dir/zgateway.log")"
fi

stop_gateway
if [ $gateway_status != 0 ]; then
    tail -n 20 "$dir/zgateway.log" >&2
    die "the gateway ended with status $gateway_status"
fi
[ "$errors" = 0 ] || die "$errors errors"
say "All well. Without --once it stays and says how to connect."
