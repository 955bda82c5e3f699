"""Workers that count, as counter.py does, in processes of their own."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("PS_BIN", ROOT / "build/release/bin")).resolve()
WAIT_S = 60


class Counter:
    """prefix: of its command line."""

    def __init__(self, folder, servers, mode, prefix=()):
        self.mode = mode
        env = {**os.environ, "PYTHONPATH": str(ROOT / "worker/python"), "PSD_LIBRARY": str(BIN.parent / "lib/libpsd.so.1")}
        self.log = open(folder / f"{mode}.log", "w")
        command = [*prefix, sys.executable, ROOT / "tests/ha/counter.py", f"psd://{servers}", mode]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.answer() == {"joined": True}

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the {self.mode} worker has ended: {pathlib.Path(self.log.name).read_text()[-2000:]}"
        return json.loads(line)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        self.log.close()
