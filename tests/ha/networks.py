"""Hosts on one machine: network namespaces on a bridge, for tests that cut links. Needs root; what cannot run here skips the test, with
the reason."""

import os
import subprocess

import pytest

SUBNET = "10.98.0"


def ip(*args, check=True):
    got = subprocess.run(["ip", *map(str, args)], capture_output=True, text=True)
    assert got.returncode == 0 or not check, f"ip {' '.join(map(str, args))}: {got.stderr}"
    return got.returncode == 0


class Networks:
    """`names` become hosts with addresses of their own; they reach each other, and nobody else. `booted`: those that are there, by a process in
    their namespace."""

    def __init__(self, names, subnet=SUBNET, booted=()):
        self.prefix = f"psd{os.getpid() % 100000}"
        self.names, self.subnet, self.booted = list(names), subnet, dict(booted)
        self.bridge = f"{self.prefix}bridge"

    def __enter__(self):
        if os.geteuid() or not ip("netns", "add", self.bridge, check=False):
            pytest.skip("no network namespace can be made here: it takes root")
        ip("-n", self.bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "br0", "up")
        for i, name in enumerate(self.names, 1):
            ip("netns", *(["attach", self.namespace(name), self.booted[name]] if name in self.booted else ["add", self.namespace(name)]))
            ip("link", "add", f"to{i}", "netns", self.bridge, "type", "veth", "peer", "name", "eth0", "netns", self.namespace(name))
            ip("-n", self.bridge, "link", "set", f"to{i}", "master", "br0", "up")
            ip("-n", self.namespace(name), "link", "set", "lo", "up")
            ip("-n", self.namespace(name), "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            ip("-n", self.namespace(name), "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            ip("netns", "del", self.namespace(name), check=False)
        ip("netns", "del", self.bridge, check=False)

    def namespace(self, name):
        return f"{self.prefix}{name}"

    def address(self, name):
        return f"{self.subnet}.{self.names.index(name) + 1}"

    def inside(self, name, *args):
        """The command line that runs `args` on this host."""
        return ["ip", "netns", "exec", self.namespace(name), *map(str, args)]

    def unplug(self, name):
        """Its cable is out: nothing comes or goes, and nobody is told."""
        ip("-n", self.bridge, "link", "set", f"to{self.names.index(name) + 1}", "down")

    def drop(self, source, target):
        """What `source` sends to `target` is lost; the other direction goes on."""
        rules = f"table ip dropped {{ chain in {{ type filter hook input priority 0; ip saddr {self.address(source)} drop; }}; }}"
        subprocess.run(self.inside(target, "nft", rules), check=True)

    def heal(self):
        for i, name in enumerate(self.names, 1):
            ip("-n", self.bridge, "link", "set", f"to{i}", "up")
            subprocess.run(self.inside(name, "nft", "flush ruleset"), check=True)
