#!/bin/sh
# Runs every check on the tree and on the build variant in $1, such as build/release, as many at a time as there are cores. A line
# for each; what a check says is shown when it fails. Exits 1 if any did.
cd "$(dirname "$0")/../.." || exit 2
[ -d "${1:-}" ] || { echo "usage: tests/lint/run.sh build/release   (after make)" >&2; exit 2; }
said=$(mktemp -d) || exit 2
trap 'rm -rf "$said"' EXIT
check='
    name=$(basename "${1%.*}")
    if "$1" "$2" >"$3/$name.said" 2>&1; then
        echo "ok      ${name#check_}"
    else
        { echo "FAILED  ${name#check_}"; sed "s/^/        /" "$3/$name.said"; } >"$3/$name.failed"
        cat "$3/$name.failed"
    fi'
# Those that take long first.
printf '%s\n' tests/lint/check_clang.sh tests/lint/check_*.sh tests/lint/check_*.py | awk '!seen[$0]++' |
    xargs -P "$(nproc)" -I CHECK sh -c "$check" sh CHECK "$1" "$said"
! ls "$said"/*.failed >/dev/null 2>&1
