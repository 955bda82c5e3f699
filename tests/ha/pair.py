"""A primary and its standby, real processes on ports of this machine. Logs are in their folders."""

import json
import signal
import subprocess
import time

from training import BIN, free_ports, wait_for


def knows_standbys():
    said = subprocess.run([BIN / "psd", "--help"], capture_output=True, text=True, check=False)
    return "--standby " in said.stdout


class Member:
    """One psd of a pair, of the programs in `programs`. A second start() has the same port and data."""

    def __init__(self, folder, port, *flags, programs=BIN):
        folder.mkdir(parents=True)
        self.programs = programs
        self.address = f"127.0.0.1:{port}"
        self.data, self.log = folder / "data", folder / "psd.log"
        self.flags = flags
        self.proc = None

    def start(self, *more):
        with open(self.log, "a", encoding="utf-8") as log:
            self.proc = subprocess.Popen(
                [self.programs / "psd", "--listen", self.address, "--http", "", "--data-dir", self.data, *self.flags, *more],
                stdout=log, stderr=log)

    def psctl(self, *words):
        return subprocess.run([BIN / "psctl", *words, "--server", self.address], capture_output=True, text=True,
                              timeout=60, check=False)

    def says(self, words):
        return words in self.log.read_text()

    def await_ready(self):
        wait_for("psd's start", lambda: self.says("psd ready: "))

    def await_alone(self):
        wait_for("a primary that goes on alone", lambda: self.says("is out of sync"), 30)

    def status(self):
        said = self.psctl("status", "--json", "--node", "0")
        return {} if said.returncode else json.loads(said.stdout)

    def replication(self):
        return self.status().get("replication", {})

    def promote(self):
        """Says how long it took until the promotion was answered. The first tries may still see the primary's end."""
        began = time.monotonic()
        wait_for("the promotion", lambda: self.psctl("promote").returncode == 0, 20)
        return time.monotonic() - began


class Pair:
    def __init__(self, folder, *flags, state="in sync"):
        ports = free_ports(2)
        self.primary, self.standby = (Member(folder / name, port, "--shards", "2", *flags)
                                      for name, port in zip("ab", ports))
        try:
            self.primary.start()
            self.primary.await_ready()
            self.standby.start("--standby", self.primary.address)
            wait_for(f"a standby that is {state}", lambda: self.standby.replication().get("state") == state, 60)
        except BaseException:
            Pair.end(self)
            raise

    def await_in_sync(self):
        wait_for("a standby in sync", lambda: self.standby.replication().get("in_sync"), 60)

    @property
    def servers(self):
        return f"{self.primary.address},{self.standby.address}"

    def fail_over(self):
        """kill -9 of the primary; the standby takes its place. The killed one can be started again as the standby."""
        self.primary.proc.kill()
        self.primary.proc.wait()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def end(self):
        for member in (self.primary, self.standby):
            if member.proc and member.proc.poll() is None:
                member.proc.send_signal(signal.SIGKILL)
                member.proc.wait()
