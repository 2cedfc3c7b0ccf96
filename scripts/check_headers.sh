#!/bin/bash
# Each header compiles alone, with gcc and clang: it includes what it uses, and forward-declares the rest.
#
#   scripts/check_headers.sh [ROOT]      exit status 1 where one does not
#   scripts/check_headers.sh --self-test
set -euo pipefail

check() { # root
    local root=$1 dir header compiler count=0 bad=0
    dir=$(mktemp -d)
    # What meson generates.
    printf '#pragma once\n#define ZG_VERSION "0"\n#define ZG_MIMALLOC 0\n' >"$dir/zg_build.h"
    for header in $(cd "$root" && find core net admission cache shard -name '*.h' 2>/dev/null | sort); do
        count=$((count + 1))
        # Twice, so that a header without #pragma once is seen too.
        printf '#include "%s"\n#include "%s"\nextern int zg_not_empty;\n' "$header" "$header" >"$dir/one.c"
        for compiler in gcc clang; do
            if ! $compiler -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -I"$root" -I"$dir" "$dir/one.c" 2>"$dir/err"; then
                echo "$header does not compile alone ($compiler):"
                sed -n '1,4p' "$dir/err"
                bad=$((bad + 1))
            fi
        done
        grep -q '^#pragma once' "$root/$header" || { echo "$header: no #pragma once"; bad=$((bad + 1)); }
    done
    rm -rf "$dir"
    [ $count -gt 0 ] || { echo "no headers below $root"; return 1; }
    echo "check_headers: $count headers, $bad problems"
    [ $bad = 0 ]
}

self_test() {
    local root
    root=$(mktemp -d)
    mkdir "$root/core"
    printf '#pragma once\n#include <stdint.h>\nstruct a { uint64_t x; };\n' >"$root/core/right.h"
    check "$root" >/dev/null || { echo "self-test: a right header was rejected"; return 1; }
    printf '#pragma once\nstruct b { uint64_t x; };\n' >"$root/core/wrong.h"
    ! check "$root" >/dev/null || { echo "self-test: a header that lacks an include was accepted"; return 1; }
    printf '#include <stdint.h>\nextern int x;\n' >"$root/core/wrong.h"
    ! check "$root" >/dev/null || { echo "self-test: a header without #pragma once was accepted"; return 1; }
    rm -rf "$root"
    echo "check_headers: self-test: 3 cases"
}

if [ "${1:-}" = --self-test ]; then
    self_test
else
    check "${1:-$(cd "$(dirname "$0")/.." && pwd)}"
fi
