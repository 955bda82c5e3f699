"""A pair of psd that etcd names, and a worker that counts."""

import signal

from counting import Counter
from pair import Pair
from training import wait_for


class CountedPair(Pair):
    def __init__(self, folder, *flags, servers=None, state="in sync"):
        super().__init__(folder, *flags, state=state)
        self.counter = Counter(folder, servers or self.servers, "async")

    def members(self):
        return self.primary, self.standby

    def end(self):
        self.counter.close()
        for member in self.members():
            member.proc.send_signal(signal.SIGCONT)
        super().end()


def kill(*members):
    for member in members:
        member.proc.kill()
    for member in members:
        member.proc.wait()


def await_takeover(pair):
    wait_for("the takeover", lambda: pair.standby.replication().get("role") == "primary", 30)
    pair.primary, pair.standby = pair.standby, pair.primary


def rejoin(pair):
    """Who was the primary has ended, and starts as it did before."""
    pair.standby.start()
    pair.await_in_sync()
