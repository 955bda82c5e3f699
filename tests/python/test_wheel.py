"""The wheel, in an environment of its own: it needs no library of psd's on the machine."""

import os
import subprocess
import sys

import pytest

from places import BIN

PROGRAM = """
import psd, sys
from psd._lib import find_library
assert find_library().startswith(sys.prefix), find_library()
with psd.local() as server, psd.connect(server.url, job="j") as c:
    print(c.table("item", dim=2).pull([1, 2]).shape)
with open("/proc/self/maps") as maps:
    print(sorted({line.split("/")[-1].strip() for line in maps if "/psd/lib/" in line}))
"""


def test_it_installs_offline_and_carries_what_it_needs(tmp_path):
    pytest.importorskip("cffi", reason="cffi is missing: apt-get install python3-cffi")
    wheels = sorted((BIN.parent / "wheel").glob("psd-*.whl"))
    if not wheels:
        pytest.skip("there is no wheel: make wheel")
    assert len(wheels) == 1
    env = {name: value for name, value in os.environ.items() if name not in ("PSD_LIBRARY", "PYTHONPATH")}
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "v"], check=True, timeout=120)
    python = tmp_path / "v/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheels[0]], check=True, timeout=120, env=env)
    done = subprocess.run([python, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shape, libraries = done.stdout.strip().split("\n")
    assert shape == "(2, 2)"
    for name in ("psd", "uv", "protobuf-c", "zstd", "xxhash", "isal"):
        assert f"'lib{name}.so." in libraries, libraries


def test_it_names_the_machine_that_it_is_for(tmp_path):
    for wheel in (BIN.parent / "wheel").glob("psd-*.whl"):
        assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
