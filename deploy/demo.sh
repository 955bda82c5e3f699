#!/bin/sh
# The two programs at work on real data: a psd with its stats page, a psworker that trains on UCI Adult, and the AUC.
# $1: the folder of the programs.
set -eu
cd "$(dirname "$0")/.."
bin=$1
dir=$(mktemp -d)
psd=
trap '[ -z "$psd" ] || { kill "$psd" 2>/dev/null && wait "$psd" 2>/dev/null; } || true; rm -rf "$dir"' EXIT INT TERM

"$bin/psd" --dev --listen 127.0.0.1:0 --http 127.0.0.1:0 --data-dir "$dir/data" 2>"$dir/psd.log" &
psd=$!
until grep -qs 'psd ready' "$dir/psd.log"; do
    kill -0 "$psd" 2>/dev/null || { cat "$dir/psd.log" >&2; exit 1; }
    sleep 0.1
done
ready=$(grep 'psd ready' "$dir/psd.log")
address=$(echo "$ready" | sed 's/.*listening on \([^,]*\),.*/\1/')
http=$(echo "$ready" | sed 's/.*http \([^, ]*\).*/\1/')
echo "psd listens on $address; its stats page is http://$http/"
"$bin/psworker" train --config deploy/adult.conf --servers "$address" \
    --data tests/data/adult.data.zst --valid tests/data/adult.test.zst --json "$dir/result.json" --progress-every 200ms
# Shards report once a second or so: the rows stand when two reports agree.
before=
now=$("$bin/psctl" --server "$address" tables)
until [ "$now" = "$before" ]; do
    sleep 1.5
    before=$now
    now=$("$bin/psctl" --server "$address" tables)
done
echo "$now"
auc=$(sed -n 's/.*"event":"result".*"auc":\([0-9.]*\).*/\1/p' "$dir/result.json")
printf 'test AUC %.4f on tests/data/adult.test.zst\n' "$auc"
if [ -t 0 ] && [ -t 1 ] && [ -z "${CI:-}" ]; then
    printf 'psd still runs: look at http://%s/ and press Enter to stop it ' "$http"
    read -r _ || true
else
    echo "the stats page was http://$http/ (psd stops now; \`psd --dev\` keeps one running)"
fi
