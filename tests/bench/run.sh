#!/bin/sh
# Runs psbench against a psd of its own: pull, push and mix, uniform and Zipf 0.99, dim 16 and 64, each ROUNDS times on a
# fresh psd, of which the run with the median rows/s counts. Prints a markdown table and writes it, and one JSON line a run,
# into $OUT (default: build/bench).
#
#     tests/bench/run.sh build/release/bin
#     SECONDS_EACH=10 ROUNDS=3 ROWS=1000000 tests/bench/run.sh build/release/bin
[ -x "${1:-}/psd" ] && [ -x "$1/psbench" ] || { echo "usage: tests/bench/run.sh BIN_DIR   (after make)" >&2; exit 2; }
bin=$1
out=${OUT:-build/bench}
seconds=${SECONDS_EACH:-3}
rounds=${ROUNDS:-3}
rows=${ROWS:-1000000}
mkdir -p "$out" || exit 1
scratch=$(mktemp -d) || exit 1
psd=
trap '[ -z "$psd" ] || kill "$psd" 2>/dev/null; rm -rf "$scratch"' EXIT
: >"$out/psbench.jsonl"

# One fresh psd on a free port: its process in $psd, its address in $server.
start_psd() {
    : >"$scratch/log"
    "$bin/psd" --listen 127.0.0.1:0 --http off --shards 1 --data-dir "" 2>>"$scratch/log" &
    psd=$!
    until server=$(sed -n 's/.*listening on \([^,]*\),.*/\1/p' "$scratch/log") && [ -n "$server" ]; do
        kill -0 "$psd" 2>/dev/null || { cat "$scratch/log" >&2; exit 1; }
        sleep 0.1
    done
}

stop_psd() {
    kill "$psd"
    wait "$psd"
    psd=
}

value() {
    sed -n "s/.*\"$1\":\([-0-9.a-z]*\).*/\1/p"
}

row() {
    round=0
    : >"$scratch/runs"
    while [ $round -lt "$rounds" ]; do
        start_psd
        "$bin/psbench" "$1" --server "$server" --server-pid "$psd" --zipf "$2" --dim "$3" --rows "$rows" \
            --seconds "$seconds" --warmup 1 --json "$scratch/runs" >"$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
        stop_psd
        round=$((round + 1))
    done
    cat "$scratch/runs" >>"$out/psbench.jsonl"
    best=$(while read -r line; do echo "$(echo "$line" | value rows_per_s) $line"; done <"$scratch/runs" |
        sort -n | sed -n "$(((rounds + 1) / 2))p" | cut -d' ' -f2-)
    echo "$best" | awk -v load="$1" -v zipf="$2" -v dim="$3" -v rps="$(echo "$best" | value rows_per_s)" \
        -v qps="$(echo "$best" | value requests_per_s)" -v gb="$(echo "$best" | value gb_per_s)" \
        -v p50="$(echo "$best" | value p50_us)" -v p99="$(echo "$best" | value p99_us)" \
        -v p999="$(echo "$best" | value p999_us)" -v cpu="$(echo "$best" | value server_cpu_s_per_million_rows)" \
        'END { printf "| %s | %s | %d | %.2f | %d | %.2f | %.0f | %.0f | %.0f | %.3f |\n", load,
               zipf == "0" ? "uniform" : "zipf " zipf, dim, rps / 1e6, qps, gb, p50, p99, p999, cpu }' |
        tee -a "$out/psbench.md"
}

printf '%s\n%s\n' \
    '| load | keys | dim | M rows/s | requests/s | GB/s | p50 us | p99 us | p99.9 us | server CPU s / M rows |' \
    '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |' | tee "$out/psbench.md"
for dim in 16 64; do
    for zipf in 0 0.99; do
        for load in pull push mix; do
            row $load $zipf $dim
        done
    done
done
