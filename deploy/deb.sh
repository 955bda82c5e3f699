#!/bin/sh
# Builds the Debian packages from this tree: deb.sh BUILD OUT VERSION CUDA LIBRARIES BUILD-DEPENDS... (make deb says them). The
# packages, and what dpkg-buildpackage writes beside them, go into OUT; the tree's own folder BUILD lends what is compiled. CUDA: yes,
# if psd-cuda is to be built, too. LIBRARIES: development packages that libpsd-dev needs.
set -eu
build=$(cd "$1" && pwd) out=$2 version=$3 cuda=$4 libraries=$5
shift 5
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
stage=$out/psd-$version
rm -rf "$stage" "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
mkdir "$stage"

# What git knows or would take; all but what is built, where there is no git.
if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z -co --exclude-standard
else
    find . -path ./build -prune -o \( -type f -o -type l \) -print0
fi | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C "$stage"
ln -s "$build" "$stage/build"
mv "$stage/deploy/debian" "$stage/debian"

# build-essential is there in every build.
comma_list() { printf '%s\n' "$@" | grep -vx build-essential | sed '$!s/$/,/' | tr '\n' ' ' | sed 's/ $//'; }
sed -i -e '/^#/d' -e "s/@build-depends@/$(comma_list "$@")/" -e "s/@library-depends@/$(comma_list $libraries)/" "$stage/debian/control"

# Of the last commit, so that the same sources are the same packages.
when=$(git log -1 --format=%ct 2>/dev/null || date +%s)
maintainer=$(sed -n 's/^Maintainer: //p' "$stage/debian/control")
cat >"$stage/debian/changelog" <<CHANGELOG
psd ($version) unstable; urgency=medium

  * Built from the tree of psd $version.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$when")
CHANGELOG

# Variables of the make that runs this would reach the make of the packages.
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR PREFIX
cd "$stage"
said=$out/build.log
dpkg-buildpackage -us -uc -b $([ "$cuda" != yes ] || echo -Ppkg.psd.cuda) >"$said" 2>&1 || { tail -n 30 "$said" >&2; exit 1; }
cd "$out"
rm -rf "$stage"
ls *.deb | sed "s|^|  DEB  $out/|"
