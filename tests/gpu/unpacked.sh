#!/bin/bash
# make gpu-check with the programs of this folder (pack.sh): ./gpu-check. Results in $OUT, or results/.
# $GPU_CHECK_PARTS and $GPU_CHECK_BATCH as tests/gpu/check.sh reads them.
cd "$(dirname "$0")" || exit 2

# Folders that may have libcublasLt: the loader's own, the toolkit's, those of Python's wheels.
folders() {
    ldconfig -p 2>/dev/null | sed -n 's|.*libcublasLt\.so\.13 .*=> \(.*\)/[^/]*$|\1|p'
    local nvcc=$(command -v nvcc)
    [ -z "$nvcc" ] || echo "$(dirname "$(realpath "$nvcc")")/../lib64"
    printf '%s\n' /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib
    command -v python3 >/dev/null && python3 -c 'import glob, sys
for folder in sys.path:
    print(*glob.glob((folder or ".") + "/nvidia/*/lib"), sep="\n")'
}

export OUT=${OUT:-$PWD/results} PSD_BIN=$PWD/psd PS_SHARED=${PS_SHARED:-$PWD/shared}
lack=libcublasLt.so.13
while read -r folder; do
    [ -e "$folder/libcublasLt.so.13" ] || continue
    echo "gpu-check: libcublasLt.so.13 is that of $folder" >&2
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} lack=
    break
done < <(folders)
[ -z "$lack" ] || { echo "gpu-check: there is no $lack in any place where it is looked for" >&2; exit 1; }
for program in python3 compute-sanitizer; do
    echo "gpu-check: $program: $(command -v $program || echo none)" >&2
done
exec tests/gpu/check.sh none build "" programs
