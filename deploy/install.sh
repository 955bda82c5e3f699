#!/bin/sh
# Installs the programs of folder $1 under $2$3 (DESTDIR, PREFIX): programs, completions, the plug-in, libpsd, units, man pages, and in
# share/psd what watches them and how they are started elsewhere; and sample configurations
# in $2/etc/psd, where a file that is there already is left alone and the sample put beside it as .new. $4: the folder of libraries, or
# nothing: PREFIX/lib, with Debian's name of this machine where there is one (lib/x86_64-linux-gnu).
set -eu
bin=$(cd "$1" && pwd) dest=$2 prefix=$3 libdir=${4:-}
case $dest in "" | /*) ;; *) dest=$PWD/$dest ;; esac
cd "$(dirname "$0")"

install -d "$dest$prefix/bin" "$dest$prefix/lib/systemd/system" "$dest/etc/psd/jobs" "$dest/etc/psd/nodes"
for program in psd psworker psctl psbench; do
    [ ! -x "$bin/$program" ] || install -m 755 "$bin/$program" "$dest$prefix/bin/$program"
done
# What completes psctl's words in a shell, where each shell looks for it.
if [ -x "$bin/psctl" ]; then
    case $prefix in /usr) zsh=vendor-completions ;; *) zsh=site-functions ;; esac
    install -d "$dest$prefix/share/bash-completion/completions" "$dest$prefix/share/zsh/$zsh"
    "$bin/psctl" completion bash >"$dest$prefix/share/bash-completion/completions/psctl"
    "$bin/psctl" completion zsh >"$dest$prefix/share/zsh/$zsh/_psctl"
fi
# The GPU's half of psworker, where it was built: psworker looks there (worker/cuda_plugin.h).
if [ -e "$bin/psworker_cuda.so" ]; then
    install -d "$dest$prefix/lib/psd"
    install -m 644 "$bin/psworker_cuda.so" "$dest$prefix/lib/psd/psworker_cuda.so"
fi
# The C library, where it was built.
if [ -e "$bin/../lib/libpsd.so.1" ]; then
    if [ -z "$libdir" ]; then
        machine=$(${CC:-cc} -print-multiarch 2>/dev/null || true)
        libdir=$prefix/lib${machine:+/$machine}
    fi
    install -d "$dest$libdir/pkgconfig" "$dest$prefix/include"
    install -m 644 "$bin/../lib/libpsd.so.1" "$bin/../lib/libpsd.a" "$dest$libdir"
    ln -sf libpsd.so.1 "$dest$libdir/libpsd.so"
    install -m 644 ../worker/libpsd/psd.h "$dest$prefix/include/psd.h"
    sed "s|@prefix@|$prefix|; s|@libdir@|$libdir|" "$bin/../lib/psd.pc" >"$dest$libdir/pkgconfig/psd.pc"
    chmod 644 "$dest$libdir/pkgconfig/psd.pc"
fi
for unit in psd.service psd@.service psworker@.service psserve@.service; do
    sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$unit" >"$dest$prefix/lib/systemd/system/$unit"
    chmod 644 "$dest$prefix/lib/systemd/system/$unit"
done

# $1: sample, $2: where it goes
sample() {
    if [ ! -e "$2" ]; then
        install -m 644 "$1" "$2"
    elif ! cmp -s "$1" "$2"; then
        install -m 644 "$1" "$2.new"
        echo "$2 is left as it is; the sample is $2.new"
    fi
}
sample psd.conf "$dest/etc/psd/psd.conf"
sample psworker.conf "$dest/etc/psd/jobs/criteo.conf"

for folder in prometheus grafana samples; do
    install -d "$dest$prefix/share/psd/$folder"
    install -m 644 "$folder"/* "$dest$prefix/share/psd/$folder"
done
chmod 755 "$dest$prefix/share/psd/samples/slurm.sh"
./man.sh "$bin" "$dest$prefix/share/man"
echo "installed under $dest$prefix; samples in $dest/etc/psd"
