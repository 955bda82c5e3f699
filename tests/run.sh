#!/bin/sh
# Tests, in phases: tests/run.sh check | test | ci | soak [SECONDS]. The Makefile's targets of these names say what each is for.
# A program has a time limit, ten times what it takes on a quiet machine, and its output is shown when it fails. What cannot run
# here says "skipped: why". Each phase ends with its duration, and all of it with "N passed, N failed[, N skipped]".
cd "$(dirname "$0")/.." || exit 2
plan=${1:-test} soak_s=${2:-600}
case $plan in check | test | ci | soak) ;; *) echo "usage: tests/run.sh check | test | ci | soak [SECONDS]" >&2; exit 2 ;; esac
[ "$soak_s" -gt 0 ] 2>/dev/null || { echo "tests/run.sh: $soak_s is no number of seconds" >&2; exit 2; }
jobs=$(nproc)
log=build/test-logs
rm -rf "$log" && mkdir -p "$log"
export PS_GOLDEN="$PWD/build/golden" PS_SHARED="${PS_SHARED:-$PWD/../shared}"
# Of what is random: the same for the same sources, so that a failure can be had again, and another with every change.
# A soak has seeds by the clock.
if [ "$plan" != soak ]; then
    tree=$(git rev-parse 'HEAD^{tree}' 2>/dev/null | cut -c1-8)
    export PS_SEED="${PS_SEED:-$((0x${tree:-1}))}"
    echo "PS_SEED=$PS_SEED"
fi
# A part of the cases of the longest tests, another with every change; a soak takes all (tests/support/share.h).
case $plan in
test) export PS_SHARE="${PS_SHARE:-6}" ;;
ci) export PS_SHARE="${PS_SHARE:-3}" ;;
esac
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 suppressions=$PWD/tests/tsan.supp"

if [ ! -d "$PS_SHARED/data/criteo" ]; then
    if [ -n "${CI:-}" ]; then
        echo "the real click logs are missing: $PS_SHARED/data/criteo (tests on real data would be skipped)" >&2
        exit 1
    fi
    echo "there are no real click logs in $PS_SHARED/data: tests that read them are skipped"
fi

passed=0 failed=0 skipped=0
# Of a phase's lines.
tally() {
    passed=$((passed + $(grep -c '^ok' "$1")))
    failed=$((failed + $(grep -c '^FAIL' "$1")))
    skipped=$((skipped + $(grep -c '^skipped: ' "$1")))
}

# Of all processes that have ended, in seconds.
cpu() { awk '{print int(($16 + $17) / 100)}' "/proc/$$/stat"; }
# NAME COMMAND...
phase() {
    echo "$1"
    name=$1 began=$(date +%s) cpu_before=$(cpu)
    shift
    "$@"
    echo "($name: $(($(date +%s) - began)) s, $(($(cpu) - cpu_before)) s of CPU)"
}

# VARIANT TARGET...
build() {
    make --no-print-directory -j"$jobs" VARIANT="$@" >"$log/build-$1.log" 2>&1 || { tail -n 40 "$log/build-$1.log"; exit 1; }
}

# --- unit tests ---

# Which unit programs have threads worth watching.
threads='common/test_(mailbox|histogram|memory_reserve|free_list)|client/|libpsd/|data/test_data_loader|worker/test_(metrics_endpoint|device_cache|param_store_(exact_cache|periodic)|batch_memory|pipeline|trainer|device_push|scorer)|model/test_(thread_pool|threads|device)$|net/|psd/|admin/test_http|wal/test_wal_thread'
names=$(ls tests/unit/*/test_*.c tests/unit/*/test_*.cpp | sed 's|^tests/unit/||; s|\.[a-z]*$||')
# Of this VARIANT, whose names match.
programs() { echo "$names" | grep -E "$2" | sed "s|^|build/$1/unit/|"; }

# Those that take longest, so that none of them is left over when the others are done.
long='core/test_(shard_(damage|budget)|replay)|recovery/test_(wal_replay|chain)|psd/test_interrupted|checkpoint/test_checkpoint_faults|client/test_(push_journal|ps_pulls|ps_broken|shard_link)|cuda/test_faults|worker/test_(device_(cache|push)|trainer)|model/test_threads|wal/test_wal_(reader|writer_faults)'

# CI takes all cases where something is asked of all of them together.
run_one='
    name=$(echo "$1" | sed "s|build/||; s|/|-|g")
    [ "'$plan'" != ci ] || ! grep -qs share_is_all "tests/unit/${1#build/*/unit/}.c" || export PS_SHARE=1
    if timeout 900 "$1" >"'$log'/$name.log" 2>&1; then
        times >"'$log'/$name.times"
        s=$(awk "NR == 2 {split(\$1, u, /[ms]/); split(\$2, s, /[ms]/); print int(60 * (u[1] + s[1]) + u[2] + s[2])}" "'$log'/$name.times")
        n=$(grep -c "^\[       OK \]" "'$log'/$name.log"); echo "ok    $1 ($n tests, $s s of CPU)"
        sed -n "s|^skipped: |skipped: $1: |p" "'$log'/$name.log"
    else
        echo "FAIL  $1 (exit $?)"; tail -n 60 "'$log'/$name.log"
    fi'
# PROGRAM...; more at a time than there are cores: some wait for most of their time.
units() {
    { printf '%s\n' "$@" | grep -E "$long"; printf '%s\n' "$@" | grep -vE "$long"; } |
        xargs -P "$((jobs + 2))" -n1 sh -c "$run_one" sh | tee "$log/unit.txt"
    tally "$log/unit.txt"
    [ "$(grep -cE '^(ok|FAIL) ' "$log/unit.txt")" = $# ] || { echo "FAIL  unit tests: not all programs have ended"; failed=$((failed + 1)); }
}
# Of this VARIANT, those of which a run takes a share of the cases.
shared_programs() {
    shared=$(grep -l tests/support/share.h tests/unit/*/test_*.c | sed 's|^tests/unit/||; s|\.c$||')
    programs "$1" "^($(echo $shared | tr ' ' '|'))\$"
}
# As on a machine that has nothing but the repository. The other unit tests do not know where the data would be.
with_data=$(grep -l PS_SHARED tests/unit/*/test_*.c | sed 's|^tests/unit/||; s|\.c$||')
units_without_data() {
    had=$PS_SHARED was_ci=${CI-}
    unset CI
    PS_SHARED=/nonexistent
    units "$@"
    PS_SHARED=$had
    [ -z "$was_ci" ] || export CI="$was_ci"
    grep -q '^skipped: .*/data/' "$log/unit.txt" || { echo "FAIL  no unit test has missed the data"; failed=$((failed + 1)); }
}

# --- kernels ---

# What can be held of kernels without a GPU: the lines that a sixth of the tests' cases run, registers and spills, and that all programs for
# one build.
kernels() {
    for target in cuda-coverage cuda-budget gpu-programs; do
        if PS_SHARE=6 nice -n 19 timeout --foreground 1800 make --no-print-directory -j"$jobs" $target >"$log/$target.log" 2>&1; then
            said=$(tail -n1 "$log/$target.log")
            case $said in
            "no "*) echo "skipped: make $target: $said" ;;
            *) echo "ok    make $target: $said" ;;
            esac
        else
            echo "FAIL  make $target"
            tail -n 40 "$log/$target.log"
        fi
    done >"$log/kernels.txt"
}

# --- the simulated cluster ---

simulate_one='
    program=build/$1/bin/$2
    shift 2
    said=$(timeout '$((soak_s + 900))' "$program" "$@" 2>&1) && echo "ok    $program $*: $(echo "$said" | tail -n1)" ||
        { echo "FAIL  $program $*"; echo "$said" | tail -n 20; }'
# Runs what it reads: a variant, a program and flags, a line each. A short one under ASan is CI's alone: its build takes longer than its
# schedules.
simulate() {
    build release build/release/bin/sim
    [ "$plan" = test ] || build asan build/asan/bin/sim
    xargs -P "$jobs" -L1 sh -c "$simulate_one" sh | tee "$log/sim.txt"
    tally "$log/sim.txt"
}
# Seeds that are always the same, deaths at every file operation, and seeds that these sources alone have. SHARE: of a CI run's, 1 or 2.
simulate_shortly() {
    simulate <<END
$([ "$plan" = test ] || printf 'asan sim --seed 5000 --schedules 60\n')
release sim --seed 1 --schedules $((1000 / $1))
release sim --seed 11 --every-op --schedules $((500 / $1))
release sim --seed 20000 --schedules $((200 / $1)) --twice
release sim --seed ${PS_SEED}000 --schedules $((300 / $1))
END
}
simulate_long() {
    simulate <<END
asan sim --seconds $soak_s
release sim --seconds $soak_s
release sim --seconds $soak_s
release sim --every-op --seconds $soak_s
END
}

# NAME...: faults put into the product, which the simulation has to find; make sim-mutants puts in all of them.
mutants() {
    if nice -n 19 timeout --foreground 1800 tests/sim/mutants.py "$@" >"$log/mutants.log" 2>&1; then
        sed 's/^/ok    mutant /' "$log/mutants.log"
    else
        echo "FAIL  mutants $*"
        cat "$log/mutants.log"
    fi >"$log/mutants.txt"
}

# CI alone: what computes and has no deadline takes the cores that tests of real processes leave idle, at the lowest priority.
compute() {
    kernels
    mutants early-reply repeated-push fenced-lease
    nice -n 19 tests/fuzz/run.sh --build >"$log/fuzz-build.log" 2>&1 || true # fuzz says what is wrong
}
computed() {
    wait "$computing" || { echo "FAIL  kernels, mutants: not all have ended"; failed=$((failed + 1)); }
    trap - INT TERM
    for what in kernels mutants; do
        [ -s "$log/$what.txt" ] || continue
        cat "$log/$what.txt"
        tally "$log/$what.txt"
    done
}

# --- fuzzing ---

# SECONDS for each parser, or --replay.
fuzz() {
    tests/fuzz/run.sh "$1" | tee "$log/fuzz.txt"
    tally "$log/fuzz.txt"
    grep -q '^ok' "$log/fuzz.txt" || failed=$((failed + 1))
}

# --- real processes ---

S=tests/system
# The golden numbers, and ten that tell most about the whole in little time: exact training, crashes, layouts, leases, tools.
telling="$S/test_golden.py
    $S/test_oracle.py::test_one_worker_ends_in_the_same_bits_on_any_cluster_and_in_one_process
    $S/test_durability.py::test_what_was_acknowledged_survives_kill_9_and_is_applied_once
    $S/test_recovery.py::test_a_worker_that_takes_a_dead_ones_place_trains_no_step_again
    $S/test_relayout.py::test_another_layout_after_a_crash_in_lock_step_has_rows_of_one_clock
    $S/test_node.py::test_nodes_of_a_cluster_restore_alone_or_together
    $S/test_freeze.py::test_a_machine_that_stood_still_has_given_nobody_up
    $S/test_worker.py::test_a_model_is_evaluated_alike_from_servers_a_restart_a_checkpoint_and_other_shards
    $S/test_wire.py::test_a_run_in_two_halves_ends_in_the_same_bits_as_in_one
    $S/test_endpoint.py::test_stats_report_what_the_workers_did
    $S/test_psctl.py::test_tables_workers_and_waits_are_shown_aligned"
# The longest of all; make test runs it in the release build.
orders=$S/test_oracle.py::test_two_workers_end_in_the_same_bits_in_twenty_orders_of_arrival
# How many of these the last line of pytest has, in $said.
said_of() { echo "$said" | grep -oE "[0-9]+ ($1)" | awk '{n += $1} END {print n + 0}'; }
# SUITE VARIANT PROCESSES TEST...
# A failure shows the values of variables, shortened: whole tables that differ would be compared line by line for minutes.
run_pytest() {
    suite=$1 variant=$2 processes=$3
    shift 3
    PS_BIN="build/$variant/bin" /usr/bin/python3 -m pytest -q -rfEs -n "$processes" --timeout=600 --durations=10 --assert=plain --showlocals -p no:cacheprovider \
        --junitxml="$log/system-$suite.xml" "$@" >"$log/system-$suite.txt" 2>&1
    echo $? >"$log/system-$suite.status"
}
# SUITE: shows and counts what it has brought.
tally_pytest() {
    status=$(cat "$log/system-$1.status")
    echo "tests of real processes: $1"
    sed 's/^SKIPPED \[\([0-9]*\)\] /skipped: /' "$log/system-$1.txt" | tail -n 60
    said=$(tail -n1 "$log/system-$1.txt")
    p=$(said_of passed) s=$(said_of skipped) f=$(said_of 'failed|error')
    { [ "$status" -ne 0 ] || [ "$p" = 0 ]; } && [ "$f" = 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# The few that tell most, of programs that are built.
system_shortly() {
    run_pytest release release $((jobs + 2)) $telling
    tally_pytest release
}

# All; more at a time than there are cores: many of these tests wait for most of their time. What takes longest first; processes are
# given the rest in portions, so behind it what is short. CI alone builds an earlier psd, to hold this one's files and wire against it.
system_release() {
    run_pytest release release $((jobs + 3)) $S/test_criteo.py $S/test_bad_*.py \
        $(ls $S/test_*.py | grep -vE "/test_(criteo|hostile|bad_.*$([ "$plan" = ci ] || echo '|versions'))\.py\$")
}
# Beside it: the Python package (apart, as its conftest.py is another), and with sanitizers what breaks connections and threads.
system_others() {
    run_pytest python release "$jobs" tests/python
    run_pytest asan asan "$jobs" $([ "$plan" = ci ] || echo "--deselect=$orders") $S/test_oracle.py $S/test_worker.py $S/test_freeze.py $S/test_node.py $S/test_bad_frames.py $S/test_standby.py $S/test_pair.py
    run_pytest tsan tsan "$jobs" $([ "$plan" != ci ] || echo $S/test_oracle.py) $S/test_freeze.py $S/test_node.py $S/test_pair.py
}
# All cases of the tests of which a run takes a share.
system_whole() {
    run_pytest release release $((jobs + 3)) $(grep -lE '\bshare\(' $S/test_*.py)
    run_pytest asan asan "$jobs" $S/test_oracle.py
    run_pytest tsan tsan "$jobs" $S/test_oracle.py
    for suite in release asan tsan; do
        tally_pytest $suite
    done
}
system() {
    trap 'trap - INT TERM; kill 0' INT TERM # those beside it, too, which a shell lets ignore ^C
    PS_PORTS_FROM=$((jobs + 3)) system_others &
    others=$!
    system_release
    wait $others
    # By themselves: how long a worker waits is held to a bound.
    run_pytest hostile release "$jobs" $S/test_hostile.py
    # Pairs of psd, whose standbys must not fall behind for want of a core. They wait for much of their time.
    if [ "$plan" = ci ]; then
        compute &
        computing=$!
    fi
    run_pytest ha release "$jobs" tests/ha
    [ "$plan" = ci ] || trap - INT TERM
    for suite in release hostile ha python asan tsan; do
        tally_pytest $suite
    done
}

# --- plans ---

build_all() {
    phase "building: asan" build asan unit build/asan/bin/psd build/asan/bin/psworker build/asan/bin/psctl build/asan/bin/psbench
    phase "building: tsan" build tsan $(programs tsan "$threads") build/tsan/bin/psd build/tsan/bin/psworker build/tsan/bin/psctl
    phase "building: release" build release all golden-tests emu-plugin alloc-counter wheel build/release/bin/sim
}

if [ "$plan" = check ]; then
    phase "building" build release build/release/bin/psd build/release/bin/psworker build/release/bin/psctl unit golden-tests
    phase "unit tests: release" units $(programs release .)
    phase "tests of real processes: release" system_shortly
elif [ "$plan" = soak ]; then
    build_all
    phase "unit tests: asan, tsan, all cases" units $(shared_programs asan) $(shared_programs tsan | grep -E "$threads")
    phase "tests of real processes: all cases" system_whole
    phase "the simulated cluster" simulate_long
    phase "fuzzing" fuzz "$soak_s"
else
    build_all
    phase "unit tests: asan, tsan" units $(programs asan .) $(programs tsan "$threads")
    phase "the simulated cluster" simulate_shortly $([ "$plan" = ci ] && echo 1 || echo 2)
    phase "fuzzing: inputs that are kept" fuzz --replay
    phase "tests of real processes" system
fi
if [ "$plan" = ci ]; then
    phase "unit tests: asan, without the data" units_without_data $(echo "$with_data" | sed 's|^|build/asan/unit/|')
    phase "kernels, mutants of the simulation: begun beside tests of pairs" computed
    phase "fuzzing: 10 s each" fuzz 10
fi

echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ] && [ $passed -gt 0 ]
