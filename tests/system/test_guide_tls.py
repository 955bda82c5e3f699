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
from test_packages import install as install_packages
from test_packages import package, packages  # noqa: F401
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


@pytest.fixture
def debs(request):
    """What the guide's apt-get installs; None where no packages can be made."""
    try:
        folder = request.getfixturevalue("packages")
    except pytest.skip.Exception:
        return None
    return [package(folder, name) for name in ("psd", "psctl", "psworker", "libpsd1")]


def install(to, debs):
    """The packages start psd alone. Where there are none, as if they had."""
    if debs:
        (to.root / "var/lib/man-db/auto-update").unlink(missing_ok=True)  # an index of man pages takes ten seconds
        install_packages(to, debs)
    else:
        subprocess.run([ROOT / "deploy/install.sh", BIN, to.root, "/usr"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "CC": "cc"})
        to.run("systemctl", "daemon-reload")
        to.run("systemctl", "start", "psd")
    assert (to.root / "var/lib/private/psd/LOCK").exists() or (to.root / "var/lib/psd/LOCK").exists()


def join(hosts):
    """A cable between them."""
    ends = [f"pst{os.getpid() % 100000}{end}" for end in "ab"]
    subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
    for to, end, address in zip(hosts, ends, ["10.0.0.1/24", "10.0.0.2/24"]):
        subprocess.run(["ip", "link", "set", end, "netns", to.leader], check=True)
        to.run("ip", "address", "add", address, "dev", end)
        to.run("ip", "link", "set", end, "up")


def run_block(hosts, on, text):
    """No ssh is there, so what its lines would do is done here; the lines between them are scripts."""
    a, b = hosts
    said = ""
    for part in re.split(r"^((?:scp|ssh|apt-get) .*)\n", text, flags=re.M):
        copied, made = re.match(r"scp (.*) root@10\.0\.0\.2:(\S+)$", part), re.match(r"ssh root@10\.0\.0\.2 (.*)$", part)
        if copied:
            for path in copied[1].split():
                shutil.copy(a.root / path[1:], b.root / copied[2][1:])
        elif made:
            said += b.run("sh", "-ec", made[1])
        elif not part.startswith("apt-get "):  # install() has done that
            said += "".join(to.run("sh", "-ec", part) for name, to in zip("AB", hosts) if name in on.split(" and "))
    return said


def test_the_guide_leads_to_a_cluster_that_trains(host, other, debs):  # noqa: F811
    if not shutil.which("ip"):
        pytest.skip("ip is missing: apt-get install iproute2")
    hosts = [host, other]
    for to in hosts:
        install(to, debs)
    join(hosts)
    begun = time.monotonic()
    blocks = [(HEAD.match(block.text)[1], HEAD.sub("", block.text, count=1)) for block in run_on("two hosts with systemd")]
    assert len(blocks) >= 7
    printed = "".join(run_block(hosts, on, text) for on, text in blocks)
    assert "nothing is wrong: 2 nodes" in printed and "https://10.0.0.2:7071/" in printed
    assert "trained on 18000 samples" in printed and "ads/emb" in printed
    head, line = re.search(r"^(JOB .* AUC\b.*)\n(ads .*)", printed, re.M).groups()  # psctl jobs
    end = head.index(" AUC") + 4
    assert re.fullmatch(r"0\.\d{4}", line[:end].split()[-1]), printed
    host.run("openssl", "pkcs12", "-in", "/tmp/reader.p12", "-passin", "pass:import-me", "-noout")
    assert "psd_certificate_expiry_timestamp_seconds" in host.run("cat", "/tmp/metrics.txt")
    for to in hosts:
        wait_for("the reload", lambda: "in force now: the certificates" in to.journal("psd"), 20)
    assert time.monotonic() - begun < MINUTES * 60
    refused = host.run("psworker", "train", "--config", "/etc/psd/jobs/ads.conf", "--data", "/tmp/clicks.tsv.zst", "--job", "other",
                       "--give-up", "2s", status=None)
    assert "role worker of job ads may not use it" in refused


def test_both_nodes_may_stand_on_one_machine(host, debs):  # noqa: F811
    install(host, debs)
    blocks = run_on("one host with systemd")
    assert len(blocks) == 1
    printed = host.run("sh", "-ec", blocks[0].text)
    assert "problem" not in printed, printed
    for name in ("n0", "n1"):
        assert host.run("systemctl", "is-active", f"psd@{name}").strip() == "active"
