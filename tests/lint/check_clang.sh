#!/bin/sh
# The other compiler sees other mistakes: every file must be clean for clang too, with gcc's flags. $1: the variant.
cd "$(dirname "$0")/../.." || exit 2
flags=$(tests/lint/flags.sh "$1") || exit 2
tests/lint/files.sh | grep '\.c$' | {
    while read -r file; do
        eval "clang $flags -fsyntax-only \"$file\"" || bad=1
    done
    exit ${bad:-0}
}
