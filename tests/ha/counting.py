"""Workers that count, as counter.py does, in processes of their own."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("PS_BIN", ROOT / "build/release/bin")).resolve()
WAIT_S = 60


def psd_environment():
    """With the Python package of this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "worker/python"), "PSD_LIBRARY": str(BIN.parent / "lib/libpsd.so.1")}


class Counter:
    """prefix: of its command line."""

    def __init__(self, folder, servers, mode, prefix=()):
        self.mode = mode
        self.log = open(folder / f"{mode}.log", "w")
        command = [*prefix, sys.executable, ROOT / "tests/ha/counter.py", servers if "://" in servers else f"psd://{servers}", mode]
        self.process = subprocess.Popen(command, env=psd_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.longest_ms = 0.0
        assert self.answer() == {"joined": True}

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the {self.mode} worker has ended: {pathlib.Path(self.log.name).read_text()[-2000:]}"
        return json.loads(line)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        said = self.answer()
        self.longest_ms = max(self.longest_ms, said.get("longest_ms", 0.0))
        return said

    def stall(self):
        """The longest push since this was last asked, in ms."""
        self.ask("go")
        longest, self.longest_ms = self.longest_ms, 0.0
        return longest

    def push_on(self, n=20):
        """So many acknowledged pushes later."""
        until = self.ask("go")["pushed"] + n
        while self.ask("go")["pushed"] < until:
            pass

    def pushed_by(self, when_s):
        """So many were acknowledged then, as time.monotonic() has it."""
        return self.ask(f"by {when_s}")["pushed"]

    def check(self):
        """All that was acknowledged is applied once. The worker ends."""
        end = self.ask("stop")
        assert end["lowest"] == end["highest"] == end["pushed"] and not end["lost"], end
        assert self.process.wait(WAIT_S) == 0

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        self.log.close()
