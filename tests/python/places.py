"""Where the package, the programs and the library are. PS_BIN: the programs that are tested."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("PS_BIN", ROOT / "build/release/bin")).resolve()
PACKAGE = ROOT / "worker/python"
