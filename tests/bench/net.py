"""A link between two network namespaces: psworker in one, psd in the other, a rate between them, its bytes counted.

    worker's namespace                                   server's namespace
    10.77.0.1  wire0  <-- veth, tbf in both directions -->  wire0  10.77.0.2

Needs root, iproute2, and a kernel with network namespaces, veth and (for a rate) tbf.
"""
import json
import os
import re
import shutil
import subprocess
import time

import rig

WORKER, SERVER = "worker", "server"
ADDRESS = {WORKER: "10.77.0.1", SERVER: "10.77.0.2"}
HEADER_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps
NAME = re.compile(r"psbench-(\d+)-(?:worker|server)\b")
BURST = [(10e6, "16kb"), (200e6, "64kb"), (2e9, "256kb")]  # bit/s up to which: a few ms of the rate, and more than a segment
QUEUE_MS = 50


def ip(*args, tool="ip"):
    got = subprocess.run([tool, *args], capture_output=True, text=True, timeout=30)
    if got.returncode:
        raise rig.Trouble(f"{tool} {' '.join(args)}: {got.stderr.strip().splitlines()[-1] if got.stderr else 'failed'}")
    return got.stdout


def bits_of(rate):
    match = re.fullmatch(r"([0-9.]+)([kmg]?)bit", rate)
    if not match:
        raise rig.Trouble(f"rate: found {rate}, expected such as 100mbit")
    number, unit = match.groups()
    return float(number) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[unit]


def remove_leftovers():
    """Of yardsticks that were killed: a namespace is named after its process."""
    for match in NAME.finditer(ip("netns", "list")):
        if not os.path.exists(f"/proc/{match[1]}"):
            ip("netns", "del", match[0])


class Link:
    def __init__(self):
        self.name = {side: f"psbench-{os.getpid()}-{side}" for side in ADDRESS}
        self.rate = None

    def __enter__(self):
        missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
        if missing:
            raise rig.Trouble(f"{missing[0]} is not there: apt-get install iproute2")
        if os.geteuid():
            raise rig.Trouble("network namespaces: need root")
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def _make(self):
        for name in self.name.values():
            ip("netns", "add", name)
        ip("link", "add", "wire0", "netns", self.name[WORKER], "type", "veth", "peer", "name", "wire0", "netns", self.name[SERVER])
        for side, name in self.name.items():
            ip("-n", name, "addr", "add", f"{ADDRESS[side]}/30", "dev", "wire0")
            ip("-n", name, "link", "set", "wire0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def _remove(self):
        """The veth goes with its namespaces, at the latest when the last process in them has."""
        for name in self.name.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)

    def __exit__(self, *_):
        self._remove()

    def inside(self, side):
        """What stands before a command that runs there."""
        return ["ip", "netns", "exec", self.name[side]]

    def shape(self, rate):
        """Such as 100mbit, in each direction; None: as fast as it goes."""
        for name in self.name.values():
            if rate:
                burst = next((burst for limit, burst in BURST if bits_of(rate) <= limit), "1mb")
                ip("-n", name, "qdisc", "replace", "dev", "wire0", "root", "tbf", "rate", rate, "burst", burst, "latency",
                   f"{QUEUE_MS}ms", tool="tc")
            elif self.rate:
                ip("-n", name, "qdisc", "del", "dev", "wire0", "root", tool="tc")
        self.rate = rate

    def sent(self, side):
        """Bytes so far, with all headers. The kernel hands the veth segments by the dozen, under one header: what a network card would
        have put before each of the others is added. Acknowledgements are as few as the bundles, as with cards that bundle."""
        name = self.name[side]
        sent = json.loads(ip("-n", name, "-s", "-j", "link", "show", "wire0"))[0]["stats64"]["tx"]
        lines = [line.split() for line in ip("netns", "exec", name, "cat", "/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        segments = int(dict(zip(*lines))["OutSegs"])
        return sent["bytes"] + HEADER_BYTES * max(segments - sent["packets"], 0)

    def bytes(self):
        """Both ways."""
        return sum(map(self.sent, self.name))


def wait_until_quiet(link, quiet_s=0.05, within_s=5):
    """The count once nothing moves any more."""
    end, before = time.monotonic() + within_s, link.bytes()
    while time.monotonic() < end:
        time.sleep(quiet_s)
        now = link.bytes()
        if now == before:
            break
        before = now
    return before
