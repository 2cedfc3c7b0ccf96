#!/bin/bash
# clang-tidy (.clang-tidy) and cppcheck over the sources.
#
#   scripts/check_tidy.sh tidy BUILD      BUILD: a build directory made with clang (its compile_commands.json is used)
#   scripts/check_tidy.sh cppcheck
#   scripts/check_tidy.sh --self-test
#
# clang-tidy has ZG_TIDY_SECONDS (default 180): files that changed since the last ten commits come first. What the time does not allow
# for is listed and is no failure; a finding is.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

sources() { find core net admission cache shard bench -name '*.c' 2>/dev/null | sort; }

# Changed files first.
ordered() {
    local changed
    changed=$(git diff --name-only HEAD~10 2>/dev/null || true)
    { sources | grep -xF "$changed" || true; sources; } | awk '!seen[$0]++'
}

tidy() {
    local build=$1 limit=${ZG_TIDY_SECONDS:-180} dir file
    [ -e "$build/compile_commands.json" ] || { echo "no compile_commands.json in $build"; return 1; }
    dir=$(mktemp -d)
    mkdir "$dir/out"
    export dir build end=$(($(date +%s) + limit))
    # Only what the build knows: a file that is not compiled has no flags to check it with.
    ordered | while read -r file; do
        if grep -q "$file\"" "$build/compile_commands.json"; then echo "$file"; fi
    done >"$dir/files"
    xargs -P "$(nproc)" -I{} bash -c '
        [ $(date +%s) -lt $end ] || { echo "{}" >>"$dir/skipped"; exit 0; }
        clang-tidy --quiet -p "$build" "{}" >"$dir/out/$(echo "{}" | tr / _)" 2>/dev/null </dev/null
        # 1 is a finding and shows in the output; a crash must not pass for a file without any.
        status=$?
        [ $status -lt 2 ] || echo "{}: error: clang-tidy ended with status $status" >>"$dir/out/crashed"
        exit 0' <"$dir/files"
    local count bad
    count=$(wc -l <"$dir/files")
    { cat "$dir"/out/* 2>/dev/null | grep -E '(warning|error): ' | sort -u | sed -E "s#^.*/(core|net|admission|cache|shard|bench)/#\1/#" || true; } >"$dir/findings"
    bad=$(wc -l <"$dir/findings")
    cat "$dir/findings"
    [ ! -e "$dir/skipped" ] || { echo "not checked for lack of time:"; cat "$dir/skipped"; }
    rm -rf "$dir"
    [ "$count" -gt 0 ] || { echo "no files"; return 1; }
    echo "check_tidy: $count files, $bad findings"
    [ "$bad" = 0 ]
}

# autoVariables: a caller's local lent for the time of a call is how results are handed back here; the compilers' dangling-pointer warnings remain.
run_cppcheck() { # files or folders
    cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 -j "$(nproc)" \
        --suppress=missingInclude --suppress=autoVariables --suppress=missingIncludeSystem --suppress=unmatchedSuppression --suppress=normalCheckLevelMaxBranches \
        --suppress=invalidPrintfArgType_uint --suppress=invalidPrintfArgType_sint -D_GNU_SOURCE -D__linux__ -I. "$@" 2>&1
}

self_test() {
    local dir status
    dir=$(mktemp -d "$root/build-selftest-XXXXXX")
    printf '#include <stdlib.h>\nint main(void)\n{\n    char *p = malloc(4);\n    free(p);\n    return p[0];\n}\n' >"$dir/bad.c"
    status=0
    clang-tidy --quiet --config-file="$root/.clang-tidy" "$dir/bad.c" -- -std=gnu17 >"$dir/out" 2>/dev/null || status=$?
    [ $status != 0 ] && grep -q 'after it is freed' "$dir/out" || { echo "self-test: clang-tidy missed a use after free"; rm -rf "$dir"; return 1; }
    printf 'int f(void)\n{\n    int a[4];\n    a[4] = 1;\n    return a[0];\n}\n' >"$dir/bad.c"
    ! run_cppcheck "$dir/bad.c" >/dev/null || { echo "self-test: cppcheck missed an index out of bounds"; rm -rf "$dir"; return 1; }
    rm -rf "$dir"
    echo "check_tidy: self-test: 2 cases"
}

case "${1:-}" in
tidy) tidy "${2:?a build directory}" ;;
cppcheck)
    run_cppcheck $(for folder in core net admission cache shard bench; do [ ! -d $folder ] || [ -z "$(find $folder -name '*.c')" ] || echo $folder; done) &&
        echo "check_tidy: cppcheck: all right"
    ;;
--self-test) self_test ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
