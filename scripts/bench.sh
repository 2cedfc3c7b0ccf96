#!/bin/bash
# Benchmarks: each prints a table and one verdict line; exit status 0 only where what is required holds (1: it does not, 2: inconclusive).
#
#   scripts/bench.sh list
#   scripts/bench.sh NAME [--short] [arguments of the benchmark]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

# Programs are bench/NAME.py or bench/NAME.sh; what begins with an underscore, or is imported by others, is none.
benchmarks() {
    local file
    for file in bench/*.py bench/*.sh; do
        [ -x "$file" ] || continue
        file=$(basename "$file")
        case "$file" in _*) continue ;; esac
        echo "${file%.*}"
    done
}

name=${1:-list}
[ $# -eq 0 ] || shift
case "$name" in
list)
    for benchmark in $(benchmarks); do
        file=$(ls bench/"$benchmark".py bench/"$benchmark".sh 2>/dev/null | head -n 1)
        printf '%-10s %s\n' "$benchmark" "$(sed -n '2,3p' "$file" | sed 's/^[#" ]*//; s/"*$//' | grep -m 1 . || true)"
    done
    ;;
-h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0" ;;
*)
    if ! benchmarks | grep -qxF -- "$name"; then
        echo "bench: no benchmark '$name'; there are: $(benchmarks | tr '\n' ' ')" >&2
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
