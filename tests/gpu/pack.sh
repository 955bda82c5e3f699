#!/bin/bash
# BUILD/gpu-pack.tar.xz: all that make gpu-check runs, built and stripped, with the libraries and the data that it needs. On a machine
# with a GPU, libcublasLt and bash it is unpacked, and ./gpu-check in it runs; no make, compiler, package or network is asked for.
# usage: pack.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:?"usage: pack.sh BUILD"} pack=$build/gpu-pack
sample=${PS_SHARED:-../shared}/data/criteo/criteo_dev_110000.tsv.zst

# Shared libraries of programs, but for those of glibc, which the machine has.
libraries() {
    ldd "$@" | awk '$3 ~ "^/" && $1 !~ "^lib(c|m|dl|rt|pthread|resolv)[.]so" { print $3 }' | sort -u
}

rm -rf "$pack" "$pack.tar.xz"
mkdir -p "$pack/programs" "$pack/psd/lib" "$pack/tests/gpu" "$pack/tests/bench"
cp -r "$build/cuda/gpu" "$build/cuda/unit" "$pack/programs"
cp "$build"/release/bin/{psd,psworker,psworker_cuda.so} "$(command -v zstd)" "$pack/psd"
libraries "$pack"/psd/{psd,psworker,zstd} | xargs cp -Lt "$pack/psd/lib"
find "$pack/programs" "$pack/psd" -type f -exec strip --strip-unneeded {} +
cp tests/gpu/*.{sh,py} "$pack/tests/gpu"
cp tests/bench/rig.py "$pack/tests/bench"
cp tests/gpu/unpacked.sh "$pack/gpu-check"
if [ -f "$sample" ]; then
    mkdir -p "$pack/shared/data/criteo"
    cp "$sample" "$pack/shared/data/criteo"
else
    echo "gpu-pack: there is no $sample: AUCs will be of synthetic rows" >&2
fi
# The programs have the same kernels: xz's window is wide enough to see that.
XZ_OPT="-7 -T0" tar cJf "$pack.tar.xz" -C "$build" gpu-pack
echo "$pack.tar.xz: $(du -m "$pack.tar.xz" | cut -f1) MiB, unpacked $(du -sm "$pack" | cut -f1)"
