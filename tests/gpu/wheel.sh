#!/bin/sh
# Prints where the libcublasLt.so.N of a Python wheel lies that has its header beside it, as PyTorch's have; nothing if there is none.
command -v python3 >/dev/null || exit 0
python3 - <<'END'
import glob
import os
import sys

for folder in sys.path:
    for path in sorted(glob.glob(os.path.join(folder or ".", "nvidia/*/lib/libcublasLt.so*"))):
        if os.path.exists(os.path.join(os.path.dirname(path), "../include/cublasLt.h")):
            print(os.path.abspath(path))
            sys.exit()
END
