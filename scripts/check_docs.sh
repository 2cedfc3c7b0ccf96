#!/bin/bash
# Is the list of options in docs/configuration.md the one that the program prints?
#
#   scripts/check_docs.sh [PROGRAM]          exit status 0: it is; 1: it is not, with the difference
#   scripts/check_docs.sh --write [PROGRAM]  puts the present list into the document
#
# PROGRAM is build/zgateway where none is given.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
document=$root/docs/configuration.md
is_write=false
if [ "${1:-}" = --write ]; then
    is_write=true
    shift
fi
program=${1:-$root/build/zgateway}
begin="<!-- options: begin; written by scripts/check_docs.sh --write -->"
end="<!-- options: end -->"

[ -x "$program" ] || { printf 'check_docs: %s is not there: build it first\n' "$program" >&2; exit 1; }
for mark in "$begin" "$end"; do
    [ "$(grep -cFx -- "$mark" "$document")" = 1 ] || { printf 'check_docs: %s needs the line "%s" once\n' "$document" "$mark" >&2; exit 1; }
done

wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
{
    sed "\|^$begin\$|q" "$document"
    printf '```yaml\n'
    "$program" --print-config
    printf '```\n'
    sed -n "\|^$end\$|,\$p" "$document"
} >"$wanted"

if cmp -s "$wanted" "$document"; then
    exit 0
fi
if $is_write; then
    cat "$wanted" >"$document"
    exit 0
fi
printf 'check_docs: docs/configuration.md is not what %s --print-config prints; scripts/check_docs.sh --write %s puts it right\n' "$program" "$program" >&2
diff -u "$document" "$wanted" >&2 || true
exit 1
