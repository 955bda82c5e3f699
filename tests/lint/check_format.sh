#!/bin/sh
# clang-format decides layout. `clang-format -i FILE` mends what this names.
cd "$(dirname "$0")/../.." || exit 2
for file in $(tests/lint/files.sh | grep -E '\.(c|h|cu|cpp)$'); do
    clang-format --dry-run -Werror "$file" >/dev/null 2>&1 || { echo "$file: clang-format would change it"; bad=1; }
done
exit ${bad:-0}
