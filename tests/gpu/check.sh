#!/bin/bash
# Everything that needs a GPU, in one command of less than nine minutes: make gpu-check (README.md beside this file).
# usage: check.sh MAKE BUILD LACK [PROGRAMS]    LACK: what is missing of nvcc and libcublasLt; PROGRAMS: a folder with all
# programs, instead of those that are built. Results go to $OUT, or BUILD/gpu. Exits 1 where there is no GPU, a phase failed, or time cut a test.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
export PATH=$PATH:/usr/local/cuda/bin # compute-sanitizer, where nobody has put it there
make=${1:?"usage: check.sh MAKE BUILD LACK [PROGRAMS]"} build=${2:?} lack=${3:-} programs=${4:-$build/cuda}
out=${OUT:-$build/gpu} total=${GPU_CHECK_SECONDS:-530}
units="bags rows sums interact encode products slots model"
bad=0

# --- phases ---

left() { echo $((total - SECONDS)); }

# name, result, seconds, why: a line of phases.jsonl. Sentences are made of what JSON need not escape.
note() {
    local why=$(printf %s "$4" | tr -d '\000-\037"\\' | cut -c1-300)
    printf '{"phase":"%s","result":"%s","seconds":%d,"why":"%s"}\n' "$1" "$2" "$3" "$why" >>"$out/phases.jsonl"
    echo "gpu-check: $1: $2, $3 s${why:+: $why}" >&2
}

skip() { note "$1" skipped 0 "$2"; }

# What a log ends with: the sentence that failed.
last_of() { grep -av '^[[:space:]]*$' "$1" | tail -n1; }

# phase NAME SECONDS COMMAND...: under that limit and what is left of all; exit status 3 says that it was skipped, and why is the
# last line.
phase() {
    local name=$1 limit=$2 start=$SECONDS status log=$out/logs/$1.log
    shift 2
    [ "$limit" -le "$(left)" ] || limit=$(left)
    [ "$limit" -ge 5 ] || { skip "$name" "there was no time left"; return 3; }
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    case $status in
    0) note "$name" passed $((SECONDS - start)) "" ;;
    3) note "$name" skipped $((SECONDS - start)) "$(last_of "$log")" ;;
    124 | 137)
        note "$name" cut $((SECONDS - start)) "it took longer than $limit s; what it had written counts"
        case $name in build* | facts | tests | three-runs) bad=1 ;; esac
        ;;
    *) note "$name" failed $((SECONDS - start)) "$(last_of "$log")"; bad=1 ;;
    esac
    return $status
}

stop() {
    echo "gpu-check: $1" >&2
    exit 1
}

# --- what phases run ---

build() { [ "$programs" != "$build/cuda" ] || "$make" --no-print-directory -j"$(nproc)" "$@"; }

unit_tests() {
    local failed="" unit
    for unit in $units; do
        "$programs/unit/test_$unit" || failed+=" test_$unit"
    done
    [ -z "$failed" ] || { echo "these failed:$failed"; return 1; }
}

# Three processes, each of which also holds graphs against ops one by one.
three_runs() {
    local run
    for run in 1 2 3; do
        "$programs/gpu/bench" digest 2048 >"$out/digest-$run.txt" || return 1
        cat "$out/digest-$run.txt"
        cmp "$out/digest-1.txt" "$out/digest-$run.txt" || { echo "run $run ended in other bits than run 1"; return 1; }
    done
}

# Ends with the first finding, so that one is not lost when time runs out.
sanitizer() {
    local tool=$1 what
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed"; return 3; }
    for what in $units steps; do
        local command=("$programs/unit/test_$what") log=$out/logs/$tool-$what.log
        [ "$what" != steps ] || command=("$programs/gpu/bench" digest 48)
        [ "$what" != model ] || continue # takes long, and has no op that steps lack
        compute-sanitizer --tool "$tool" --error-exitcode 9 "${command[@]}" >"$log" 2>&1 && continue
        grep -qi 'not supported' "$log" && { echo "compute-sanitizer does not support this device"; return 3; }
        echo "$tool found something in $what: $(grep -m1 '=========' "$log")"
        return 1
    done
}

torch() {
    command -v python3 >/dev/null || { echo "there is no python3"; return 3; }
    python3 tests/gpu/torch_step.py "$out" "$1"
}

end_to_end() {
    command -v python3 >/dev/null || { echo "there is no python3"; return 3; }
    pkg-config --exists libuv libprotobuf-c libzstd zlib openblas libmicrohttpd inih libcjson libsystemd libxxhash 2>/dev/null ||
        { echo "psd cannot be built here: its libraries are missing"; return 3; }
    build all || { echo "psd and psworker could not be built"; return 1; }
    python3 tests/gpu/end_to_end.py "$build/release/bin" "$out/end_to_end.jsonl"
}

export -f build unit_tests three_runs sanitizer torch end_to_end
export make build programs out units

# --- all of it ---

[ -z "$lack" ] || stop "there is no $lack, so nothing for a GPU can be built"
rm -rf "$out/logs" && mkdir -p "$out/logs" || stop "$out cannot be written"
rm -f "$out"/*.json "$out"/*.jsonl "$out"/*.u32 "$out"/digest-*.txt "$out/table.md"
phase build-facts 60 bash -c 'build "$build/cuda/gpu/facts"' || exit 1
phase facts 40 "$programs/gpu/facts" "$out/facts.json" || exit 1
if phase build 150 bash -c 'build gpu-programs'; then
    phase tests 90 bash -c unit_tests
    phase three-runs 30 bash -c three_runs
    phase bench 90 "$programs/gpu/bench" run "$out/facts.json" "$out"
    phase torch 110 bash -c 'torch 100'
    phase end-to-end 90 bash -c end_to_end
    for tool in memcheck racecheck initcheck synccheck; do
        phase "$tool" 45 bash -c "sanitizer $tool"
    done
fi
command -v python3 >/dev/null || stop "there is no python3 to make the table; the results are in $out"
python3 tests/gpu/report.py "$out" | tee "$out/table.md" || bad=1
exit $bad
