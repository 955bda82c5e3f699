"""The guide "A TLS cluster of two nodes": its commands, on two hosts with systemd that reach each other."""

import os
import re
import shutil
import subprocess
import time

import pytest
from conftest import BIN, ROOT
from guides import run_on
from host import Host
from host import host  # noqa: F401
from training import wait_for

HEAD = re.compile(r"# (A|B|A and B)\n")
MINUTES = 10  # that a new user has


@pytest.fixture
def other(host, tmp_path):  # noqa: F811
    folder = tmp_path / "other"
    folder.mkdir()
    other = Host(folder)
    try:
        other.boot()
        yield other
    finally:
        other.end()


def install(to):
    """The programs and units as the packages have them; test_packages.py installs these."""
    subprocess.run([ROOT / "deploy/install.sh", BIN, to.root, "/usr"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "CC": "cc"})
    to.run("systemctl", "daemon-reload")


def join(hosts):
    """A cable between them."""
    ends = [f"pst{os.getpid() % 100000}{end}" for end in "ab"]
    subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
    for to, end, address in zip(hosts, ends, ["10.0.0.1/24", "10.0.0.2/24"]):
        subprocess.run(["ip", "link", "set", end, "netns", to.leader], check=True)
        to.run("ip", "address", "add", address, "dev", end)
        to.run("ip", "link", "set", end, "up")


def run_block(hosts, on, text):
    """Packages are installed already, and no ssh is there: what it would do is done here."""
    a, b = hosts
    for copied in re.findall(r"^scp (.*) root@10\.0\.0\.2:(\S+)$", text, re.M):
        for path in copied[0].split():
            shutil.copy(a.root / path[1:], b.root / copied[1][1:])
    for made in re.findall(r"^ssh root@10\.0\.0\.2 (.*)$", text, re.M):
        b.run("sh", "-ec", made)
    script = re.sub(r"^(apt-get|scp|ssh) .*\n", "", text, flags=re.M)
    return "".join(to.run("sh", "-ec", script) for name, to in zip("AB", hosts) if name in on.split(" and "))


def test_the_guide_leads_to_a_cluster_that_trains(host, other):  # noqa: F811
    if not shutil.which("ip"):
        pytest.skip("ip is missing: apt-get install iproute2")
    hosts = [host, other]
    for to in hosts:
        install(to)
    join(hosts)
    begun = time.monotonic()
    blocks = [(HEAD.match(block.text)[1], HEAD.sub("", block.text, count=1)) for block in run_on("two hosts with systemd")]
    assert len(blocks) >= 7
    said = []
    for on, text in blocks:
        first = re.search(r"^(scp|ssh) ", text, re.M)
        if first:  # makes the files, which are copied then
            made, rest = text[:first.start()], text[first.start():]
            said += [run_block(hosts, on, made), run_block(hosts, "nowhere", re.search(r"^ssh .*\n", rest, re.M)[0]),
                     run_block(hosts, "nowhere", rest)]
        else:
            said.append(run_block(hosts, on, text))
    printed = "".join(said)
    assert "nothing is wrong: 2 nodes" in printed and "https://10.0.0.2:7071/" in printed
    assert "trained on 20000 samples" in printed and "ads/emb" in printed
    assert "psd_certificate_expiry_timestamp_seconds" in host.run("cat", "/tmp/metrics.txt")
    wait_for("the reload", lambda: "in force now: the certificates" in host.journal("psd"), 20)
    assert time.monotonic() - begun < MINUTES * 60
    refused = host.run("psworker", "train", "--config", "/etc/psd/jobs/ads.conf", "--data", "/tmp/clicks.tsv.zst", "--job", "other",
                       "--give-up", "2s", status=None)
    assert "role worker of job ads may not use it" in refused
