#!/bin/bash
# Benchmarks: each prints a table and one verdict line; exit status 0 only where what is required holds (1: it does not, 2: inconclusive).
#
#   scripts/bench.sh list
#   scripts/bench.sh NAME [--short] [arguments of the benchmark]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

# Programs are bench/NAME.py or bench/NAME.sh; a file that others import is not executable.
benchmarks() {
    local file
    for file in bench/*.py bench/*.sh; do
        [ -x "$file" ] || continue
        file=$(basename "$file")
        echo "${file%.*}"
    done
}

name=${1:-list}
[ $# -eq 0 ] || shift
case "$name" in
list)
    for benchmark in $(benchmarks); do
        file=bench/$benchmark.py
        [ -e "$file" ] || file=bench/$benchmark.sh
        printf '%-10s %s\n' "$benchmark" "$(sed -n '2,3p' "$file" | sed 's/^[#" ]*//; s/"*$//' | grep -m 1 . || true)"
    done
    ;;
-h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0" ;;
*)
    # Not by a pipe into grep -q, which ends before the writer has: with pipefail that is a failure, now and then.
    names=" $(benchmarks | tr '\n' ' ')"
    if [[ $names != *" $name "* ]]; then
        echo "bench: no benchmark '$name'; there are:$names" >&2
        exit 2
    fi
    "$root/scripts/setup.sh" run test
    # Release, by gcc: what is measured is what is shipped.
    [ -e build/build.ninja ] || meson setup build >/dev/null
    ninja -C build >/dev/null
    if [ -x "bench/$name.py" ]; then
        exec /usr/bin/python3 "bench/$name.py" "$@"
    fi
    exec bash "bench/$name.sh" "$@"
    ;;
esac
