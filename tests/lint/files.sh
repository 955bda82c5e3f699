#!/bin/sh
# Lists the source files under the given folders, or of the whole tree: the one place that knows what to leave out.
cd "$(dirname "$0")/../.." || exit 2
[ $# -gt 0 ] || set -- common proto server worker deploy tests
find "$@" \( -name build -o -name __pycache__ \) -prune -o -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' \) -print | sort
