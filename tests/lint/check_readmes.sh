#!/bin/sh
# Each module of the product stands in the README of its folder, or of the next one above that has one; those of worker/compute
# in worker/model's, which is about both.
cd "$(dirname "$0")/../.." || exit 2
bad=0
for file in $(git ls-files common proto server worker deploy/psctl | grep -E '\.(c|h|cu|proto)$'); do
    case $file in worker/compute/*) folder=worker/model ;; *) folder=${file%/*} ;; esac
    while [ ! -f "$folder/README.md" ]; do folder=${folder%/*}; done
    name=${file##*/} name=${name%.*}
    grep -qE "(^|[^A-Za-z0-9_])${name%.cu}([^A-Za-z0-9_]|\$)" "$folder/README.md" || { echo "$file: $folder/README.md does not name it"; bad=1; }
done
exit $bad
