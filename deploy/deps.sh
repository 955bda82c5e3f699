#!/bin/sh
# Installs those of the named Debian packages that are missing. Needs root or sudo only when something is.
missing=
for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
root=
[ "$(id -u)" = 0 ] || root="sudo -n"
if command -v apt-get >/dev/null && { [ -z "$root" ] || sudo -n true 2>/dev/null; }; then
    echo "installing:$missing"
    log=$(mktemp)
    { $root apt-get -o DPkg::Lock::Timeout=500 update &&
        $root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=500 install -y --no-install-recommends $missing; } >"$log" 2>&1 && exit 0
    tail -n 5 "$log" >&2
fi
echo "packages are missing and cannot be installed from here; as root, run: apt-get update && apt-get install -y$missing" >&2
exit 1
