#!/bin/bash
# One of compute-sanitizer's tools on small steps and on the tests: a line for each program that passed, the first finding last.
# usage: sanitizer.sh TOOL PROGRAMS LOGS UNIT...    exits 1 with a finding, 3 where the tool cannot run
#
# What it finds in the kernels of cublasLt does not count: nobody here can mend them, and the tools do not know all of their barriers. racecheck
# looks at a kernel alone, so it leaves them out. initcheck has to see what they write, or all that reads it would be a finding:
# there they are told by name afterwards. tests/system/test_gpu_check.py holds that no kernel of ours has such a name.
# On an H100 cublasLt 13.1's bf16 products (nvjet: writes by the bulk copy engine) end racecheck with an internal error, and initcheck does not see what
# they write. So these two tools take steps and tests in fp32 and TF32 alone ($RIG_WITHOUT_BF16: tests/unit/cuda/rig.c); in bf16 the same kernels
# of ours run. What is all kernels of ours comes first there, so that whatever the tools make of the library's is not in its way: initcheck has not
# seen its other products with memory that nobody has cleared, either.
set -u
tool=${1:?"usage: sanitizer.sh TOOL PROGRAMS LOGS UNIT..."} programs=${2:?} logs=${3:?}
shift 3
library="nvjet cutlass xmma cublas gemm gemv splitK"

# The option has another name before CUDA 12.3; several names are joined by "or".
exclusion() {
    local help=$(compute-sanitizer --help 2>&1) option
    for option in --kernel-name-exclude --kernel-regex-exclude; do
        case $help in *"$option"*) echo "$option kns=${library// /,kns=}"; return ;; esac
    done
}

# The first finding that is not in a kernel of the library: its sentence and where. Nothing, if there is none.
finding() {
    awk -v library="${library// /|}" '
        function tell() { if (what != "" && where !~ library) { print what where; told = 1; exit } }
        /^=========( COMPUTE-SANITIZER.*| *|.* SUMMARY:.*)$/ { next }
        /^========= [^ ]/ { tell(); what = substr($0, 11); where = what ~ /reported between/ ? " " : ""; if (where != "") where = " in " what; next }
        /^=========  +(at|and) / { sub(/^=========  +/, " "); where = where $0 }
        END { if (!told) tell() }' "$1" | sed 's/ in \(Error\|Warning\): Race.*//'
}

# Whether a program passed under the tool; else one sentence says why not.
passes() {
    local what=$1 log=$logs/$tool-$1.log status found
    shift
    compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 1000 $options "$@" >"$log" 2>&1
    status=$?
    grep -qi 'device not supported' "$log" && { echo "compute-sanitizer does not support this device"; exit 3; }
    grep -qv '^=========' "$log" || { echo "compute-sanitizer has not run $what: $(tail -n1 "$log")"; return 1; }
    found=$(finding "$log")
    [ $status != 9 ] || [ -n "$found" ] || return 0 # in the library's kernels alone
    [ $status = 0 ] || { echo "$tool found something in $what: ${found:-it ended with status $status}"; return 1; }
}

command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed"; exit 3; }
options=""
[ "$tool" != racecheck ] || options=$(exclusion)
# model, model_bf16, device_push and data_parallel take long, and have no op that the others lack.
case $tool in
racecheck) first="interact bf16 update decode fp32-steps tf32-steps encode" last="buffer_sets gemm" ;;
initcheck) first="fp32-steps encode" last="tf32-steps buffer_sets gemm" ;;
*) first="fp32-steps tf32-steps bf16-steps buffer_sets" last="" ;;
esac
case $tool in racecheck | initcheck) export RIG_WITHOUT_BF16=1 ;; esac
for name in $first $(printf '%s\n' "$@" | grep -vxF "$(printf '%s\n' $first $last model model_bf16 device_push data_parallel)") $last; do
    case $name in
    *-steps) passes "$name" "$programs/gpu/bench" digest 48 "${name%-steps}" ;;
    *) passes "$name" "$programs/unit/test_$name" ;;
    esac || exit 1
    echo "passed $name"
done
