"""Two psd that hold the same shards, on hosts of their own, and workers that count on a third one."""

import json
import signal
import subprocess
import time

from counting import BIN, WAIT_S, Counter

DEPOSED = 3  # exit status of a psd that hears of a greater term


def wait_until(what, is_true, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


class Member:
    """One psd, started again and again with one command line."""

    def __init__(self, pair, name, *args):
        self.pair, self.name = pair, name
        self.address = f"{pair.networks.address(name)}:7070"
        self.log = pair.folder / f"{name}.log"
        self.args = ["--listen", self.address, "--http", "off", "--insecure", "--shards", "2", "--data-dir", str(pair.folder / name), *args]
        self.process = None

    def start(self):
        assert self.process is None or self.process.poll() is not None, f"{self.name} still runs"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.pair.networks.inside(self.name, BIN / "psd", *self.args), stderr=log)

    def signal(self, number):
        self.process.send_signal(number)

    def has_ended(self):
        return self.process.poll() is not None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def report(self):
        """Its /stats as an operator gets it; None: it does not answer."""
        got = self.pair.psctl("status", "-o", "json", "--node", "0", "--timeout", "2s", server=self.address)
        try:
            return json.loads(got.stdout) if got.returncode == 0 else None
        except ValueError:
            return None

    def replication(self):
        return (self.report() or {}).get("replication") or {}


class Pair:
    def __init__(self, networks, folder, *args, state="in sync"):
        """state: of a standby that is waited for."""
        self.networks, self.folder, self.state = networks, folder, state
        self.members = [Member(self, "a", *args)]
        self.members.append(Member(self, "b", "--standby", self.members[0].address, *args))
        self.counters = []
        self.primary = 0

    def __enter__(self):
        try:
            for member in self.members:
                member.start()
            self.await_sync()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for counter in self.counters:
            counter.close()
        for member in self.members:
            if member.process and not member.has_ended():
                member.signal(signal.SIGCONT)
                member.kill()

    def count(self, *modes):
        prefix = self.networks.inside("w")
        self.counters = [Counter(self.folder, self.members[0].address, mode, prefix) for mode in modes]

    def psctl(self, *args, server):
        return subprocess.run(self.networks.inside("w", BIN / "psctl", *args, "--server", server), capture_output=True, text=True)

    def serving(self):
        return self.members[self.primary]

    def other(self):
        return self.members[1 - self.primary]

    def await_sync(self):
        """Both say so: the standby hears of it a moment later."""
        if self.state == "in sync":
            wait_until("a standby in sync", lambda: all(m.replication().get("in_sync") for m in (self.serving(), self.other())))
        else:
            wait_until("a standby", lambda: self.other().replication().get("state") == self.state)

    def promote(self, *flags):
        got = self.psctl("promote", *flags, server=self.other().address)
        assert got.returncode == 0, got.stdout + got.stderr
        self.primary = 1 - self.primary

    def await_deposed(self):
        """The old primary, which still ran, has heard of its successor."""
        wait_until("the end of the old primary", self.other().has_ended)
        assert self.other().process.returncode == DEPOSED, self.other().log.read_text()[-3000:]

    def stalls(self):
        """The longest push of each worker since this was last asked, in ms; each has pushed since."""
        return [counter.ask("go")["longest_ms"] for counter in self.counters]

    def check(self):
        """Each push is applied once."""
        for counter in self.counters:
            got = counter.ask("stop")
            assert got["lowest"] == got["highest"] == got["pushed"] and got["lost"] == 0, (counter.mode, got)
            counter.process.wait(timeout=WAIT_S)
