#!/bin/sh
# Nothing unfinished, and no path of one machine. (The brackets keep this file from naming itself.)
cd "$(dirname "$0")/../.." || exit 2
find . \( -name .git -o -name build -o -name psd-data -o -name __pycache__ \) -prune -o -type f -print0 |
    xargs -0 grep -nIE '\b(TO[D]O|FIX[M]E|XX[X])\b|(^|[^A-Za-z0-9_.%$}])/(wor[k]|hom[e]|roo[t]|User[s])/' && exit 1
exit 0
