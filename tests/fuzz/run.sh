#!/bin/sh
# Fuzzes: tests/fuzz/run.sh SECONDS [TARGET...], each target for so long, as many at a time as there are cores. It
# starts from the inputs that are kept (corpus/), from seeds that the project's own writers make, and from what runs
# before it have found. Without clang's libFuzzer those inputs are run once, under gcc's sanitizers; in CI that is a
# failure. A line for each target. --build only builds what that runs. --replay [TARGET...] runs the kept inputs and the
# seeds once under gcc's sanitizers; --keep [TARGET...] adds to corpus/ what runs have found and it does not cover.
cd "$(dirname "$0")/../.." || exit 2
run=build/fuzz/run # corpus/, seeds/ and log of each target; found/: inputs that fail
corpus_bytes_max=100000

# The target's own inputs, wherever they are.
inputs() {
    for dir in "tests/fuzz/corpus/$1" "$run/seeds/$1"; do [ -d "$dir" ] && echo "$dir"; done
}

# Runs one target; a line.
one() {
    name=$1 seconds=$2 program=$3 log=$run/$1.log
    mkdir -p "$run/corpus/$name" "$run/seeds" "$run/found"
    rm -rf "${run:?}/seeds/$name"
    "$program" --seeds "$run/seeds/$name" >"$log" 2>&1 || { echo "FAIL  fuzz $name: no seeds"; tail -n 30 "$log"; return; }
    dict=tests/fuzz/$name.dict
    if [ "$seconds" = replay ]; then
        "$program" $(inputs "$name") >"$log" 2>&1
    else
        "$program" -max_total_time="$seconds" ${PS_SEED:+-seed="$PS_SEED"} -timeout=300 -print_final_stats=1 -artifact_prefix="$run/found/$name-" \
            $([ -f "$dict" ] && echo "-dict=$dict") "$run/corpus/$name" $(inputs "$name") >"$log" 2>&1
    fi
    status=$?
    if [ $status != 0 ]; then
        echo "FAIL  fuzz $name (exit $status; the input: $run/found/, or the last path in $log)"
        grep -vE '^#[0-9]|NEW_FUNC' "$log" | tail -n 40
    elif [ "$seconds" = replay ]; then
        echo "ok    fuzz $name ($(tail -n1 "$log"), run once)"
    else
        echo "ok    fuzz $name ($(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs, $(grep -oE 'cov: [0-9]+' \
            "$log" | tail -n1 | cut -d' ' -f2) edges)"
    fi
}

# Adds to corpus/ the inputs that reach more lines, the smallest first, while it stays small.
keep() {
    name=$1 program=$2 kept=tests/fuzz/corpus/$1
    mkdir -p "$kept" "$run/merged/$name" "$run/corpus/$name"
    "$program" -set_cover_merge=1 -use_counters=0 "$run/merged/$name" $(inputs "$name") "$run/corpus/$name" >"$run/$name.merge.log" 2>&1 || return
    used=$(cat "$kept"/* 2>/dev/null | wc -c)
    ls -Sr "$run/merged/$name" | while read -r file; do
        bytes=$(wc -c <"$run/merged/$name/$file")
        used=$((used + bytes))
        [ "$used" -gt "$corpus_bytes_max" ] && break
        cmp -s "$run/merged/$name/$file" "$run/seeds/$name/$file" || cp "$run/merged/$name/$file" "$kept/"
    done
    rm -rf "$run/merged/$name"
    echo "$name: $(ls "$kept" | wc -l) inputs, $(cat "$kept"/* | wc -c) bytes"
}

if [ "$1" = --one ]; then
    one "$2" "$3" "$4"
    exit
fi
seconds=$1 only_builds=
shift
[ "$seconds" != --build ] || only_builds=yes
[ "$seconds" = --keep ] || [ "$seconds" = --replay ] || [ "$seconds" = --build ] || [ "$seconds" -gt 0 ] 2>/dev/null ||
    { echo "usage: tests/fuzz/run.sh SECONDS [TARGET...] | --build | --replay [TARGET...] | --keep [TARGET...]" >&2; exit 2; }
[ $# -gt 0 ] || set -- $(ls tests/fuzz/fuzz_*.c | sed 's|.*/fuzz_||; s|\.c$||')

mkdir -p "$run"
probe='int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long); int LLVMFuzzerTestOneInput(const unsigned char *a, unsigned long n) { return a && n ? 0 : 0; }'
if [ "$seconds" = --replay ]; then
    variant=asan cc=${CC:-cc} seconds=replay
elif echo "$probe" | clang -fsanitize=fuzzer,address -x c - -o "$run/probe" >"$run/probe.log" 2>&1; then
    variant=fuzz cc=clang
    case ${CC:-} in "ccache "*) cc="ccache clang" ;; esac
elif [ -n "${CI:-}" ]; then
    echo "clang with libFuzzer is missing (packages clang, libclang-rt-dev)" >&2
    exit 1
else
    echo "clang with libFuzzer is missing: the kept inputs are run once"
    variant=asan cc=${CC:-cc} seconds=replay
fi
make --no-print-directory -j"$(nproc)" CC="$cc" VARIANT=$variant fuzz-targets >"$run/build.log" 2>&1 ||
    { tail -n 40 "$run/build.log"; exit 1; }

[ -z "$only_builds" ] || exit 0
if [ "$seconds" = --keep ]; then
    for name in "$@"; do keep "$name" build/$variant/fuzz/fuzz_"$name"; done
    exit
fi
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
for name in "$@"; do echo "$name"; done |
    xargs -P "$(nproc)" -I{} "$0" --one {} "$seconds" build/$variant/fuzz/fuzz_{} | tee "$run/summary.txt"
! grep -q '^FAIL' "$run/summary.txt"
