"""The package as it lies in the tree, over the library and the psd that were built: PS_BIN."""

import os
import signal
import subprocess
import sys

import pytest

from places import BIN, PACKAGE, ROOT

os.environ.setdefault("PSD_LIBRARY", str(BIN.parent / "lib/libpsd.so.1"))
os.environ.setdefault("PSD_BIN", str(BIN))
sys.path[:0] = [str(PACKAGE), str(ROOT / "tests/system")]
# A shell's background job ignores it, and so would all processes of these tests.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def server():
    import psd

    with psd.local() as server:
        yield server


@pytest.fixture
def client(server):
    import psd

    with psd.connect(server.url, job="test") as client:
        yield client


@pytest.fixture
def python():
    """Runs a program in a process of its own, and returns what it printed."""
    def run(program, *arguments, status=0):
        env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout
    return run
