#!/bin/sh
# Runs every check on the tree and on the build variant in $1, such as build/release. A line for each; what a check
# says is shown when it fails. Exits 1 if any did.
cd "$(dirname "$0")/../.." || exit 2
[ -d "${1:-}" ] || { echo "usage: tests/lint/run.sh build/release   (after make)" >&2; exit 2; }
said=$(mktemp) || exit 2
trap 'rm -f "$said"' EXIT
for check in tests/lint/check_*.sh; do
    name=$(basename "$check" .sh)
    if "$check" "$1" >"$said" 2>&1; then
        echo "ok      ${name#check_}"
    else
        echo "FAILED  ${name#check_}"
        sed 's/^/        /' "$said"
        bad=1
    fi
done
exit ${bad:-0}
