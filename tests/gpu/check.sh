#!/bin/bash
# Everything that needs a GPU, in one command of less than nine minutes: make gpu-check (README.md beside this file).
# usage: check.sh MAKE BUILD LACK [PROGRAMS]    LACK: what is missing of nvcc and libcublasLt; PROGRAMS: a folder with all
# programs, instead of those that are built. Results go to $OUT, or BUILD/gpu; all else to BUILD/gpu-scratch. $PSD_BIN: psd and psworker that
# were built elsewhere. $GPU_CHECK_PARTS: some of "correctness speed auc end-to-end". Exits 1 where there is no GPU or no python3, a phase failed, or
# time cut a test.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
export PATH=$PATH:/usr/local/cuda/bin # compute-sanitizer, where nobody has put it there
make=${1:?"usage: check.sh MAKE BUILD LACK [PROGRAMS]"} build=${2:?} lack=${3:-} programs=${4:-$build/cuda}
out=${OUT:-$build/gpu} scratch=$build/gpu-scratch total=${GPU_CHECK_SECONDS:-530}
bin=$build/release/bin
[ -z "${PSD_BIN:-}" ] || bin=$(realpath -m "$PSD_BIN")
units="bags elementwise sums project dedup upload decode interact bf16 encode update gemm buffer_sets model model_bf16 device_push data_parallel"
parts=${GPU_CHECK_PARTS:-correctness speed auc end-to-end} bin_is_built=""
results="facts.json products.jsonl bench.jsonl torch.jsonl end_to_end.jsonl phases.jsonl table.md logs.tar.gz"

# --- phases ---

left() { echo $((total - SECONDS)); }

# name, result, seconds, why: a line of phases.jsonl. Sentences are made of what JSON need not escape.
note() {
    local why=$(printf %s "$4" | tr -d '\000-\037"\\' | cut -c1-300)
    printf '{"phase":"%s","result":"%s","seconds":%d,"why":"%s"}\n' "$1" "$2" "$3" "$why" >>"$out/phases.jsonl"
    [ "$1 $2" = "build-facts passed" ] || echo "gpu-check: $1: $2, $3 s${why:+: $why}" >&2 # is there a GPU at all?
}

skip() { note "$1" skipped 0 "$2"; }

# What a log ends with: the sentence that failed.
last_of() { grep -av '^[[:space:]]*$' "$1" | tail -n1; }

# What a phase of many programs has done, as its log has it: a line for each that passed.
done_of() {
    local names=$(sed -n 's/^passed //p' "$1" | tr '\n' ',' | sed 's/,$//; s/,/, /g')
    echo "${names:+passed: $names}"
}

# Results in scratch that a phase has made or added to go where they belong.
keep() {
    local name
    for name in $results; do
        [ ! -s "$scratch/$name" ] || cp -f "$scratch/$name" "$out/$name"
    done
}

# phase NAME SECONDS COMMAND...: under that limit and what is left of all; exit status 3 says that it was skipped, and why is the
# last line.
phase() {
    local name=$1 limit=$2 start=$SECONDS status ran log=$scratch/logs/$1.log
    shift 2
    [ "$limit" -le "$(left)" ] || limit=$(left)
    [ "$limit" -ge 5 ] || { skip "$name" "there was no time left"; return 3; }
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    ran=$(done_of "$log")
    case $status in
    0) note "$name" passed $((SECONDS - start)) "$ran" ;;
    3) note "$name" skipped $((SECONDS - start)) "$(last_of "$log")" ;;
    124 | 137) note "$name" cut $((SECONDS - start)) "it took longer than $limit s; what it had written counts${ran:+; $ran}" ;;
    *) note "$name" failed $((SECONDS - start)) "$(last_of "$log")${ran:+; $ran}" ;;
    esac
    keep
    return $status
}

# Whether a phase failed, or one was cut that has to end.
is_bad() {
    grep -q '"result":"failed"' "$out/phases.jsonl" ||
        grep -qE '"phase":"(build[^"]*|facts|tests|three-runs|memcheck|racecheck|initcheck|synccheck)","result":"cut"' "$out/phases.jsonl"
}

stop() {
    echo "gpu-check: $1" >&2
    exit 1
}

# --- what phases run ---

# A compiler that nobody here has met may warn of what none before has seen.
build() { "$make" --no-print-directory -j"$(nproc)" WERROR= "$@"; }

build_programs() { [ "$programs" != "$build/cuda" ] || build "$@"; }

unit_tests() {
    local failed="" unit
    for unit in $units; do
        if "$programs/unit/test_$unit"; then echo "passed $unit"; else failed+=" test_$unit"; fi
    done
    [ -z "$failed" ] || { echo "these failed:$failed"; return 1; }
}

# Three processes, each of which also holds graphs against ops one by one.
three_runs() {
    local run
    for run in 1 2 3; do
        "$programs/gpu/bench" digest 2048 >"$scratch/digest-$run.txt" || return 1
        cat "$scratch/digest-$run.txt"
        cmp "$scratch/digest-1.txt" "$scratch/digest-$run.txt" || { echo "run $run ended in other bits than run 1"; return 1; }
    done
}

torch() {
    command -v python3 >/dev/null || { echo "there is no python3"; return 3; }
    python3 tests/gpu/torch_step.py "$scratch" "$1"
}

# psd and psworker: those of $PSD_BIN, or built here.
build_psd() {
    if [ -n "${PSD_BIN:-}" ]; then
        use_psd_bin
        local program
        for program in psd psworker; do
            "$bin/$program" --version || { echo "$bin/$program does not run here: $(ldd "$bin/$program" 2>&1 | grep -m1 'not found')"; return 1; }
        done
        return 0
    fi
    pkg-config --exists libuv libprotobuf-c libzstd zlib openblas libmicrohttpd inih libcjson libsystemd libxxhash 2>/dev/null ||
        { echo "psd cannot be built here: its libraries are missing, and PSD_BIN names no folder with psd and psworker"; return 3; }
    build all || { echo "psd and psworker could not be built"; return 1; }
}

# Carried programs, their libraries, and other programs that may be missing here, as zstd.
use_psd_bin() {
    [ -n "${PSD_BIN:-}" ] || return 0
    export PATH=$bin:$PATH LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# PART: speed or auc.
end_to_end() {
    command -v python3 >/dev/null || { echo "there is no python3"; return 3; }
    use_psd_bin
    python3 tests/gpu/end_to_end.py --part "$1" "$bin" "$scratch/end_to_end.jsonl"
}

export -f build build_programs unit_tests three_runs torch build_psd use_psd_bin end_to_end
export make build programs scratch units bin

# --- parts ---

correctness() {
    phase tests 90 bash -c unit_tests
    phase three-runs 30 bash -c three_runs
    # Side by side: none is measured, and a small model in each leaves most of the GPU idle.
    local tool
    for tool in memcheck racecheck initcheck synccheck; do
        phase "$tool" 180 tests/gpu/sanitizer.sh "$tool" "$programs" "$scratch/logs" $units &
    done
    wait
}

speed() {
    phase products 40 "$programs/gpu/products" "$scratch/products.jsonl"
    phase bench "${GPU_CHECK_BENCH_SECONDS:-90}" "$programs/gpu/bench" run "$scratch/facts.json" "$scratch" ${GPU_CHECK_BATCH:-}
    phase torch "${GPU_CHECK_TORCH_SECONDS:-110}" bash -c "torch $((${GPU_CHECK_TORCH_SECONDS:-110} - 10))"
}

# PART SECONDS PHASE
ends() {
    if [ -z "$bin_is_built" ]; then
        phase build-psd 100 bash -c build_psd && bin_is_built=yes || bin_is_built=no
    fi
    [ $bin_is_built = yes ] || { skip "$3" "there is no psd"; return; }
    phase "$3" "$2" bash -c "end_to_end $1"
}

# --- all of it ---

for part in $parts; do
    case $part in correctness | speed | auc | end-to-end) continue ;; esac
    stop "GPU_CHECK_PARTS: $part is none of correctness, speed, auc, end-to-end"
done
[ -z "$lack" ] || stop "there is no $lack, so nothing for a GPU can be built"
mkdir -p "$out" && rm -rf "$scratch" && mkdir -p "$scratch/logs" || stop "$out or $scratch cannot be written"
(cd "$out" && rm -f $results)
trap 'tar czf "$out/logs.tar.gz" -C "$scratch" logs' EXIT
phase build-facts 60 bash -c 'build_programs "$build/cuda/gpu/facts"' || exit 1
phase facts 40 "$programs/gpu/facts" "$scratch/facts.json" || exit 1
if phase build 150 bash -c 'build_programs gpu-programs'; then
    for part in $parts; do
        case $part in
        correctness) correctness ;;
        speed) speed ;;
        auc) ends auc 60 auc ;;
        end-to-end) ends speed 150 end-to-end ;;
        esac
    done
fi
command -v python3 >/dev/null || stop "there is no python3 to make the table; the results are in $out"
python3 tests/gpu/report.py "$out" | tee "$out/table.md" || exit 1
! is_bad
