#!/bin/bash
# Builds zgateway and runs all of its tests; prints minutes a stage, and a table with their sum.
#
#   scripts/test.sh              everything that fits into a quarter of an hour on two CPUs
#   scripts/test.sh --full       the long form: all integration tests under both sanitizers too, half an hour of order under chaos, fifty
#                                reshards and failovers under load (docs/testing.md), two minutes a fuzz target; several hours
#   scripts/test.sh STAGE...     only these stages: build unit integration clients asan tsan fuzz
#
# Environment: ZG_SEED (order of the integration tests; default random, printed), ZG_BUILDS (where the build directories go; default the
# repository), ZG_RESULTS (a file that gets "stage passed failed seconds" lines). Exit status 0 only if nothing failed.
#
# Four builds: build (gcc, release), build-asan (clang, ASan and UBSan), build-tsan (gcc), build-fuzz (clang, libFuzzer).
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
builds=${ZG_BUILDS:-$root}
export ZG_SEED=${ZG_SEED:-$((RANDOM * 32768 + RANDOM))}

full=false
stages=()
for arg in "$@"; do
    case "$arg" in
    --full) full=true ;;
    build | unit | integration | clients | asan | tsan | fuzz) stages+=("$arg") ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
[ ${#stages[@]} -gt 0 ] || stages=(build unit integration clients asan tsan fuzz)
fuzz_seconds=20
stage_minutes=20
smoke=(-m smoke)
if $full; then
    fuzz_seconds=120
    stage_minutes=180
    smoke=()
    export ZG_FULL=1
fi

if ! "$root/scripts/setup.sh" run test; then
    echo "test: setup failed" >&2
    exit 1
fi

work=$(mktemp -d /tmp/zgateway-test-sh-XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
results=${ZG_RESULTS:-$work/results}
: >"$results"

passed=0 failed=0
count() { # runner, log: adds what it ran
    local counts
    read -r -a counts < <(python3 "$root/scripts/count_tests.py" "$1" "$2")
    passed=$((passed + counts[0]))
    failed=$((failed + counts[1]))
}
# A runner's own exit status must agree with what was counted.
runner_failed() {
    if [ "$1" != 0 ] && [ "$failed" = "$2" ]; then
        echo "test: the runner ended with status $1 and reported no failure"
        failed=$((failed + 1))
    fi
}

configure() { # directory, options...
    local directory=$1
    shift
    if [ -e "$directory/build.ninja" ]; then
        # Configured before Criterion was installed (by scripts/quickstart.sh, for one), it has no unit tests.
        [[ " $* " != *" -Dtests=false "* ]] && ! grep -q 'tests/core/test_' "$directory/compile_commands.json" || return 0
        meson setup --reconfigure "$directory" "$root" -Dtests=true >"$work/setup.log" 2>&1 || { cat "$work/setup.log"; return 1; }
        return 0
    fi
    rm -rf "$directory"
    meson setup "$directory" "$root" "$@" >"$work/setup.log" 2>&1 || { cat "$work/setup.log"; return 1; }
}

compile() { # directory, targets...
    local directory=$1
    shift
    ninja -C "$directory" -j "$(nproc)" "$@" >"$work/ninja.log" 2>&1 || { grep -v '^\[' "$work/ninja.log" | head -n 60; return 1; }
}

run_unit() { # build directory, meson test's arguments...
    local directory=$1 status=0 before=$failed
    shift
    # A log of an earlier run must not be counted as one of this.
    rm -f "$directory/meson-logs/testlog.json"
    timeout "${stage_minutes}m" meson test -C "$directory" --no-stdsplit --print-errorlogs --num-processes "$(nproc)" "$@" >"$work/unit.log" 2>&1 </dev/null || status=$?
    [ $status = 0 ] || tail -n 100 "$work/unit.log"
    count unit "$directory/meson-logs/testlog.json"
    runner_failed $status "$before"
}

# A test that no meson.build lists would be left out without a word.
all_are_listed() { # build directory, files...
    local directory=$1 file
    shift
    for file in "$@"; do
        if [ -e "$file" ] && ! grep -q "$file\"" "$directory/compile_commands.json"; then
            echo "test: $file is in no meson.build"
            failed=$((failed + 1))
        fi
    done
}

run_pytest() { # pytest's arguments...
    local status=0 before=$failed
    timeout "${stage_minutes}m" $without_aslr /usr/bin/python3 -m pytest -q -p no:cacheprovider --durations=8 --junitxml="$work/junit.xml" "$@" tests/integration </dev/null || status=$?
    count pytest "$work/junit.xml"
    rm -f "$work/junit.xml"
    runner_failed $status "$before"
}

# gcc 12's ThreadSanitizer knows no layout with more random bits than 28.
without_aslr=""
needs_fixed_layout() { [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ]; }

# A stage that runs alone builds what it needs; after another there is nothing left to do.
is_built() {
    if configure "$builds/build" && compile "$builds/build" && [ -x "$builds/build/zgateway" ]; then
        return 0
    fi
    echo "test: build/zgateway was not built"
    failed=$((failed + 1))
    return 1
}

stage_build() {
    if is_built; then
        passed=$((passed + 1))
    fi
}

stage_unit() {
    is_built || return
    all_are_listed "$builds/build" tests/{core,net,shard}/{test,race,leak,model}_*.c
    run_unit "$builds/build"
}

stage_integration() {
    is_built || return
    # Tests wait more than they work (for clusters, time-outs, faults): two files at a time take little more than half of the time.
    ZG_GATEWAY="$builds/build/zgateway" run_pytest -n 2 --dist loadfile
}

stage_clients() {
    is_built || return
    local status=0 before=$failed
    ZG_GATEWAY="$builds/build/zgateway" timeout "${stage_minutes}m" tests/clients/run.sh >"$work/node.log" 2>&1 </dev/null || status=$?
    [ $status = 0 ] || grep -A 20 '^not ok\|^# the gateway' "$work/node.log" | head -n 100
    [ $status = 0 ] || tail -n 20 "$work/node.log"
    count node "$work/node.log"
    runner_failed $status "$before"
}

stage_asan() {
    # CC only while configuring: meson remembers it.
    if ! CC=clang configure "$builds/build-asan" -Dallocator=libc -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized -Dc_args=-fno-sanitize-recover=all ||
        ! compile "$builds/build-asan"; then
        failed=$((failed + 1))
        return
    fi
    export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
    run_unit "$builds/build-asan" --timeout-multiplier 4
    ZG_GATEWAY="$builds/build-asan/zgateway" ZG_SLOWNESS=4 ZG_CORES=2 run_pytest "${smoke[@]}"
    unset ASAN_OPTIONS UBSAN_OPTIONS
}

stage_tsan() {
    # Criterion does not start under TSan: the plain programs, and a whole gateway with four data cores.
    if ! CC=gcc configure "$builds/build-tsan" -Dallocator=libc -Db_sanitize=thread -Db_lundef=false --buildtype=debugoptimized; then
        failed=$((failed + 1))
        return
    fi
    # Programs that were added since the directory was configured must be known before they are listed.
    compile "$builds/build-tsan" build.ninja || true
    local plain
    plain=$(ninja -C "$builds/build-tsan" -t targets all 2>/dev/null | sed -n 's|^\(tests/plain_[a-z0-9_]*\): .*|\1|p')
    if ! compile "$builds/build-tsan" $plain; then
        failed=$((failed + 1))
        return
    fi
    export TSAN_OPTIONS=halt_on_error=0:second_deadlock_stack=1:history_size=4
    if needs_fixed_layout; then
        without_aslr="setarch -R"
    fi
    local status=0 before=$failed
    rm -f "$builds/build-tsan/meson-logs/testlog.json"
    timeout "${stage_minutes}m" $without_aslr meson test -C "$builds/build-tsan" --no-rebuild --no-stdsplit --print-errorlogs --suite plain --timeout-multiplier 4 >"$work/unit.log" 2>&1 </dev/null || status=$?
    [ $status = 0 ] || tail -n 100 "$work/unit.log"
    count meson "$builds/build-tsan/meson-logs/testlog.json"
    runner_failed $status "$before"
    if ! compile "$builds/build-tsan" zgateway; then
        failed=$((failed + 1))
        return
    fi
    ZG_GATEWAY="$builds/build-tsan/zgateway" ZG_SLOWNESS=6 ZG_CORES=4 run_pytest "${smoke[@]}"
    unset TSAN_OPTIONS
    without_aslr=""
}

run_fuzz() { # target
    local name=${1##*/fuzz_} corpus status=0
    mkdir -p "$work/fuzz/$name"
    corpus="tests/fuzz/corpus/$name"
    [ -d "$corpus" ] || corpus=""
    timeout $((fuzz_seconds * 3 + 60)) "$1" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=2048 -seed="$((ZG_SEED % 2147483647 + 1))" -artifact_prefix="$builds/build-fuzz/found-$name-" \
        "$work/fuzz/$name" $corpus >"$work/fuzz/$name.log" 2>&1 </dev/null || status=$?
    echo "$status" >"$work/fuzz/$name.status"
}

stage_fuzz() {
    if ! CC=clang configure "$builds/build-fuzz" -Dallocator=libc -Dfuzz=true -Dtests=false -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized -Dc_args=-fno-sanitize-recover=all ||
        ! compile "$builds/build-fuzz"; then
        failed=$((failed + 1))
        return
    fi
    all_are_listed "$builds/build-fuzz" tests/fuzz/fuzz_*.c
    local target running=0 name
    mkdir -p "$work/fuzz"
    for target in "$builds"/build-fuzz/tests/fuzz/fuzz_*; do
        [ -f "$target" ] && [ -x "$target" ] || continue
        run_fuzz "$target" &
        running=$((running + 1))
        [ $((running % $(nproc))) != 0 ] || wait
    done
    wait
    for name in "$work"/fuzz/*.status; do
        [ -e "$name" ] || continue
        name=$(basename "$name" .status)
        if [ "$(cat "$work/fuzz/$name.status")" = 0 ]; then
            passed=$((passed + 1))
            echo "fuzz $name: $(grep -o '^Done [0-9]* runs' "$work/fuzz/$name.log" | tail -n 1)"
        else
            failed=$((failed + 1))
            echo "fuzz $name failed (an input is in build-fuzz/found-$name-*):"
            tail -n 40 "$work/fuzz/$name.log"
        fi
    done
    [ $running -gt 0 ] || { echo "no fuzz targets"; failed=$((failed + 1)); }
}

echo "test: seed ZG_SEED=$ZG_SEED"
total_passed=0 total_failed=0 begin=$SECONDS
for stage in "${stages[@]}"; do
    passed=0 failed=0 start=$SECONDS
    echo "== $stage"
    "stage_$stage"
    seconds=$((SECONDS - start))
    echo "== $stage: $passed passed, $failed failed, $((seconds / 60)) min $((seconds % 60)) s"
    echo "$stage $passed $failed $seconds" >>"$results"
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
done
seconds=$((SECONDS - begin))

echo
printf '%-12s %8s %8s %8s\n' stage passed failed minutes
while read -r stage ok bad took; do
    printf '%-12s %8d %8d %8s\n' "$stage" "$ok" "$bad" "$(awk "BEGIN{printf \"%.1f\", $took/60}")"
done <"$results"
printf '%-12s %8d %8d %8s\n' sum $total_passed $total_failed "$(awk "BEGIN{printf \"%.1f\", $seconds/60}")"
echo "seed ZG_SEED=$ZG_SEED"
echo "$total_passed passed, $total_failed failed"
[ $total_failed = 0 ] && [ $total_passed -gt 0 ]
