#!/bin/sh
# All tests: unit tests under ASan+UBSan, those with threads under TSan, kernels against their budgets, fuzz targets, then real processes. A program
# a file; each has a time limit, ten times what it takes on a quiet machine, and its output is shown when it fails. Ends with "N passed, N failed".
cd "$(dirname "$0")/.." || exit 2
jobs=$(nproc)
log=build/test-logs
rm -rf "$log" && mkdir -p "$log"
export PS_GOLDEN="$PWD/build/golden" PS_SHARED="${PS_SHARED:-$PWD/../shared}"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/tests/tsan.supp"

if [ -n "${CI:-}" ] && [ ! -d "$PS_SHARED/data/criteo" ]; then
    echo "the real click logs are missing: $PS_SHARED/data/criteo (tests on real data would be skipped)" >&2
    exit 1
fi

# Which unit programs have threads worth watching.
threads='common/test_mailbox|client/|data/test_feed|worker/test_(device_cache|feed_memory|pipeline|trainer|travel)|model/test_(pool|threads|compute)|common/test_(histogram|reserve)|net/|psd/|admin/test_http|log/test_log_thread'

watched=$(ls tests/unit/*/test_*.c tests/unit/*/test_*.cpp | sed 's|^tests/unit/||; s|\.[a-z]*$||' | grep -E "$threads")

# VARIANT TARGET...
build_unit() {
    echo "building the unit tests: $1"
    make --no-print-directory -j"$jobs" VARIANT="$@" >"$log/build-$1.log" 2>&1 || { tail -n 40 "$log/build-$1.log"; exit 1; }
}
build_unit asan unit all
build_unit tsan $(echo "$watched" | sed 's|^|build/tsan/unit/|')

# Those that take longest, so that none of them is left over when the others are done.
long='durable/test_recovery$|psd/test_interrupted|store/test_checkpoint_faults|client/test_spool|cuda/test_faults|core/test_shard_replay|worker/test_device_cache|log/test_log_(damage|faults)'

run_one='
    name=$(echo "$1" | sed "s|build/||; s|/|-|g")
    if timeout 900 "$1" >"'$log'/$name.log" 2>&1; then
        n=$(grep -c "^\[       OK \]" "'$log'/$name.log"); echo "ok    $1 ($n tests)"
    else
        echo "FAIL  $1 (exit $?)"; tail -n 60 "'$log'/$name.log"
    fi'
programs=$(find build/asan/unit -type f -perm -u+x | sort && echo "$watched" | sed 's|^|build/tsan/unit/|')
{
    echo "$programs" | grep -E "$long"
    echo "$programs" | grep -vE "$long"
} | xargs -P "$jobs" -n1 sh -c "$run_one" sh | tee "$log/unit.txt"
passed=$(grep -c '^ok' "$log/unit.txt")
failed=$(grep -c '^FAIL' "$log/unit.txt")

# What can be held of kernels without a GPU: the lines that the tests run, registers and spills.
echo "kernels"
for target in cuda-coverage cuda-budget; do
    if timeout 900 make --no-print-directory -j"$jobs" $target >"$log/$target.log" 2>&1; then
        said=$(tail -n1 "$log/$target.log")
        case $said in
        "no nvcc"*) echo "skip  make $target: $said" ;;
        *) echo "ok    make $target: $said"; passed=$((passed + 1)) ;;
        esac
    else
        echo "FAIL  make $target"
        tail -n 40 "$log/$target.log"
        failed=$((failed + 1))
    fi
done

# The simulated cluster: seeds that are always the same, deaths at every file operation, and seeds that no run had before.
echo "the simulated cluster"
for variant in release asan; do
    make --no-print-directory -j"$jobs" VARIANT=$variant build/$variant/bin/sim >"$log/build-sim-$variant.log" 2>&1 ||
        { tail -n 40 "$log/build-sim-$variant.log"; exit 1; }
done
simulate='
    variant=$1
    shift
    said=$(timeout 900 "build/$variant/bin/sim" "$@" 2>&1) && echo "ok    build/$variant/bin/sim $*: $(echo "$said" | tail -n1)" ||
        { echo "FAIL  build/$variant/bin/sim $*"; echo "$said" | tail -n 20; }'
xargs -P "$jobs" -L1 sh -c "$simulate" sh <<END | tee "$log/sim.txt"
asan --seed 5000 --schedules 60
release --seed 1 --schedules 1500
release --seed 11 --every-op --schedules 1500
release --seconds 8
END
passed=$((passed + $(grep -c '^ok' "$log/sim.txt")))
failed=$((failed + 4 - $(grep -c '^ok' "$log/sim.txt")))

# Every parser, 20 s each.
echo "fuzzing"
tests/fuzz/run.sh 20 | tee "$log/fuzz.txt"
passed=$((passed + $(grep -c '^ok' "$log/fuzz.txt")))
failed=$((failed + $(grep -c '^FAIL' "$log/fuzz.txt")))
grep -q '^ok' "$log/fuzz.txt" || failed=$((failed + 1))

# Real processes: everything with the release build, then what breaks connections and threads with the sanitized ones. More at a time than
# there are cores: many of these tests wait for most of their time.
system_passed=0
system_failed=0
run_system() {
    variant=$1
    shift
    echo "tests of real processes: $variant"
    make --no-print-directory -j"$jobs" VARIANT="$variant" $([ "$variant" = release ] && echo all golden-tests emu-plugin alloc-counter ||
        echo "build/$variant/bin/psd build/$variant/bin/psworker build/$variant/bin/psctl") >"$log/build-$variant-all.log" 2>&1 ||
        { tail -n 40 "$log/build-$variant-all.log"; exit 1; }
    PS_BIN="build/$variant/bin" /usr/bin/python3 -m pytest -q -n "$((jobs + 2))" --timeout=600 -p no:cacheprovider "$@" \
        >"$log/system-$variant.txt" 2>&1
    status=$?
    tail -n 40 "$log/system-$variant.txt"
    p=$(grep -oE '[0-9]+ passed' "$log/system-$variant.txt" | tail -n1 | cut -d' ' -f1)
    f=$(grep -oE '[0-9]+ (failed|error)' "$log/system-$variant.txt" | awk '{n += $1} END {print n + 0}')
    [ $status -ne 0 ] && [ "$f" = 0 ] && f=1
    system_passed=$((system_passed + ${p:-0}))
    system_failed=$((system_failed + f))
}
S=tests/system
# What takes longest first; processes are given the rest in portions, so behind it what is short.
run_system release $S/test_criteo.py $S/test_bad_*.py $(ls $S/test_*.py | grep -vE '/test_(criteo|bad_.*)\.py$')
run_system asan $S/test_oracle.py $S/test_worker.py $S/test_freeze.py $S/test_node.py $S/test_bad_frames.py
run_system tsan $S/test_oracle.py $S/test_freeze.py $S/test_node.py

echo "$((passed + system_passed)) passed, $((failed + system_failed)) failed"
[ $((failed + system_failed)) = 0 ] && [ "$passed" -gt 0 ] && [ "$system_passed" -gt 0 ]
