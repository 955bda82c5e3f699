#!/bin/sh
# Holds the symbols of the objects under $1, a build variant, against three rules:
#   no name is exported by two files, whether or not a program links both;
#   no exported name is also that of a static function elsewhere, so that a name means one thing in the whole tree (ctags
#       names those, as the compiler leaves none of a function that it puts into its callers);
#   no file leads back to itself through the symbols that it uses (tsort names the circle).
# The CUDA half is seen as it is built for the emulated device.
cd "$(dirname "$0")/../.." || exit 2
symbols=$(mktemp) || exit 2
trap 'rm -f "$symbols"' EXIT
sources=$(tests/lint/files.sh common proto server worker deploy | grep -E '\.(c|cu)$')
echo "$sources" | sed -E 's|^(worker/cuda/.*)$|emu/\1.o|; s|\.c$|.o|' | while read -r object; do
    [ -f "$1/$object" ] || { echo "$object missing"; continue; }
    nm "$1/$object" | sed -E 's/^[0-9a-f]* *//' | sed "s|^|$object |"
done | sed 's|^emu/||; s|\.cu\.o | |; s|\.c\.o | |; s|\.o | |' >"$symbols"
statics=$(ctags --languages=C --langmap=C:.c.cu --kinds-C=f --fields=+f --_xformat='%F %{file} %N' -x $sources) || exit 2
echo "$statics" | awk '$2 == "file" { sub(/\.(c|cu)$/, "", $1); print $1, "t", $3 }' >>"$symbols"
awk '
    $2 == "missing" { print $1 ": not built, so not checked"; bad = 1; next }
    { name = $3; sub(/\.(isra|part|constprop|cold|lto_priv)\..*$/, "", name); sub(/\.(cold|[0-9]+)$/, "", name) }
    name == "main" { next }
    $2 ~ /^[TDBRC]$/ {
        if (name in owner && owner[name] != $1) { print name ": exported by " owner[name] " and by " $1; bad = 1 }
        owner[name] = $1
    }
    $2 ~ /^[tdbr]$/ && name !~ /^_/ { statics[name] = statics[name] " " $1 }
    END {
        for (name in statics)
            if (name in owner) {
                n = split(statics[name], files, " ")
                for (i = 1; i <= n; i++)
                    if (files[i] != owner[name] && !said[name, files[i]]++) { print name ": exported by " owner[name] ", static in " files[i]; bad = 1 }
            }
        exit bad
    }' "$symbols" || bad=1
awk '
    $2 ~ /^[TDBRC]$/ { owner[$3] = $1 }
    $2 == "U" { uses[++n] = $1 " " $3 }
    END {
        for (i = 1; i <= n; i++) {
            split(uses[i], use, " ")
            if (use[2] in owner && owner[use[2]] != use[1]) print use[1], owner[use[2]]
        }
    }' "$symbols" | sort -u | tsort >/dev/null || bad=1
exit ${bad:-0}
