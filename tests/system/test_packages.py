"""The Debian packages: what is in them, and a host with systemd that installs them, trains, upgrades in the middle of it, and removes them."""

import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest
from conftest import BIN, ROOT
from host import host  # noqa: F401
from training import wait_for

MAKEFILE = (ROOT / "Makefile").read_text()
VERSION = re.search(r"^VERSION *= (\S+)$", MAKEFILE, re.M)[1]
NAMES = ["psd", "psworker", "psctl", "libpsd1", "libpsd-dev", "python3-psd"]
DATA = ROOT / "tests/data"


def run(*args, **more):
    got = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=500, **more)
    assert got.returncode == 0, f"{args}: {got.returncode}\n{got.stdout}{got.stderr}"
    return got.stdout


def is_installed(package):
    return "ok installed" in subprocess.run(["dpkg-query", "-W", "-f=${Status}", package], capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """The folder of the packages, built once for all processes that run tests side by side. PS_DEB: one that is there."""
    if not shutil.which("dpkg-query"):
        pytest.skip("dpkg is missing: this is not Debian")
    if BIN != (ROOT / "build/release/bin").resolve():
        pytest.skip("packages are made of build/release")
    lists = re.findall(r"^APT_(?:BUILD|DEB|DEB_TEST) *= ((?:.*\\\n)*.*)$", MAKEFILE, re.M)
    missing = [name for name in " ".join(lists).replace("\\\n", " ").split() if not is_installed(name)]
    if missing:
        pytest.skip(f"packages are missing: apt-get install {' '.join(missing)}")
    if "PS_DEB" in os.environ:
        return pathlib.Path(os.environ["PS_DEB"])
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env["DEB_BUILD_OPTIONS"] = "noautodbgsym"  # symbols for debuggers, which take a third of the time
    with open(shared / "deb.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "deb").exists():
            run("make", "-C", ROOT, "deb", f"DEB_DIR={shared}/deb", env=env)
    return shared / "deb"


def package(packages, name):
    path, = packages.glob(f"{name}_*.deb")
    return path


def built(packages):
    return NAMES + (["psd-cuda"] if list(packages.glob("psd-cuda_*.deb")) else [])


def field(packages, name, what):
    return run("dpkg-deb", "-f", package(packages, name), what).strip()


def files_of(path):
    """Without folders."""
    lines = run("dpkg-deb", "-c", path).splitlines()
    return {line.split(None, 5)[5].split(" -> ")[0][1:] for line in lines if not line.startswith("d")}


# --- what is in them ---


def test_lintian_has_nothing_to_say(packages):
    changes, = packages.glob("*.changes")
    run("lintian", "--fail-on", "error,warning", changes)
    for overrides in (ROOT / "deploy/debian").glob("*.lintian-overrides"):
        assert overrides.read_text().startswith("# "), f"{overrides.name} gives no reason"


def test_each_file_of_an_installation_is_in_one_package(packages, tmp_path):
    run(ROOT / "deploy/install.sh", BIN, tmp_path / "root", "/usr")
    installed = {"/" + str(p.relative_to(tmp_path / "root")) for p in (tmp_path / "root").rglob("*") if not p.is_dir()}
    installed = {re.sub(r"^/usr/lib/systemd", "/lib/systemd", f) for f in installed}
    installed = {f + ".gz" if f.startswith("/usr/share/man/") else f for f in installed}
    python = ROOT / "worker/python/psd"
    installed |= {f"/usr/lib/python3/dist-packages/psd/{p.relative_to(python)}" for p in python.rglob("*.py*") if p.suffix != ".pyc"}
    installed.add("/usr/lib/python3/dist-packages/psd/py.typed")
    where = {}
    for name in built(packages):
        for file in files_of(package(packages, name)):
            where.setdefault(file, []).append(name)
    assert {file: names for file, names in where.items() if len(names) > 1} == {}
    assert installed - set(where) == set()
    more = {f for f in set(where) - installed if not re.match(r"/usr/share/(doc|lintian/overrides)/|.*\.egg-info/", f)}
    assert more == set()


def test_versions_and_what_they_need_are_said_in_one_place(packages):
    assert {field(packages, name, "Version") for name in built(packages)} == {VERSION}
    assert f"libpsd1 (= {VERSION})" in field(packages, "libpsd-dev", "Depends")
    python = field(packages, "python3-psd", "Depends")
    assert f"libpsd1 (>= {VERSION})" in python and "python3-cffi," in python and "python3-numpy" in python
    assert "openblas" not in field(packages, "psd", "Depends"), "a node computes no matrix products"
    assert "${" not in "".join(field(packages, name, "Depends") for name in built(packages))


def test_the_library_says_since_which_version_it_has_its_functions(packages, tmp_path):
    run("dpkg-deb", "-e", package(packages, "libpsd1"), tmp_path / "control")
    said = set(re.findall(r"^ (psd_\w+)@PSD_\d+ ", (tmp_path / "control/symbols").read_text(), re.M))
    names = set(re.findall(r"^ +(psd_\w+);$", (ROOT / "worker/libpsd/libpsd.map").read_text(), re.M))
    assert said == names and len(names) > 20


# --- a host that installs them ---

COUNT = """
import select, sys, time
import numpy as np, psd
keys = np.arange(16)
with psd.connect(sys.argv[1], job="count") as client:
    table = client.table("sums", dim=2, optimizer="sgd", lr=1.0, init="zero")
    n, told, asked = 0, 50, ""
    while n < told or asked != "stop":
        if n >= told and select.select([sys.stdin], [], [], 0)[0]:
            asked = sys.stdin.readline().strip() or "stop"
            told = n + 50 if asked == "more" else told
            continue
        table.push(keys, -np.ones((16, 2), np.float32), tick=True)
        n += 1
        time.sleep(0.001)
        if n == told:
            print("counting", flush=True)
    client.flush()
    rows = table.pull(keys)
    print("pushed", n, "lowest", int(rows.min()), "highest", int(rows.max()), "lost", client.stats()["pushes_lost"], flush=True)
"""


def install(host, debs, *options):
    """dpkg alone: what a package needs is there, or it is an error."""
    for deb in debs:
        shutil.copy(deb, host.root / "srv")
    return host.run("dpkg", "--force-unsafe-io", *options, "-i", *[f"/srv/{deb.name}" for deb in debs])


def prepare(host):
    """No index of man pages, which takes dpkg ten seconds."""
    (host.root / "var/lib/man-db/auto-update").unlink(missing_ok=True)
    for name in ("adult.data.zst", "adult.test.zst"):
        shutil.copy(DATA / name, host.root / "srv")
    host.write("srv/count.py", COUNT)


def job(epochs):
    """The census data in lock step, which ends in the same bits wherever the tables are, and whatever happens to the servers."""
    text = (ROOT / "deploy/adult.conf").read_text()
    text = text.replace("[data]\n", "[data]\ndata = {data}/adult.data.zst\nvalid = {data}/adult.test.zst\n")
    text = text.replace("job = adult\n", "job = adult\nmode = bsp\n").replace("epochs = 3\n", f"epochs = {epochs}\n")
    return text + "\n[wire]\nrow-cache = 0\n\n[output]\njson = result.json\n"


def result(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last, = [line for line in lines if line["event"] == "result"]
    return last


def trained_here(tmp_path, text):
    (tmp_path / "here.conf").write_text(text.format(data=DATA))
    run(BIN / "psworker", "train", "--config", tmp_path / "here.conf", "--local", cwd=tmp_path)
    return result(tmp_path / "result.json")


def main_pid(host, unit):
    return int(host.property(unit, "MainPID"))


def state_of(host, unit):
    return host.property(unit, "ActiveState")


def is_running(host, unit):
    return state_of(host, unit) in ("active", "activating")


def await_end(host, unit):
    """For as long as its log grows: on a busy machine a job takes its time."""
    while is_running(host, unit):
        said = host.journal(unit)
        wait_for(f"the end of {unit}, or a line of it", lambda before=said: not is_running(host, unit) or host.journal(unit) != before)
    assert state_of(host, unit) == "inactive", host.journal(unit)


def same(a, b):
    """Two results of one training: what does not tell of time or of the network."""
    names = ["step", "samples", "loss", "auc", "logloss", "calibration", "validation_rows", "rows_pushed", "rows_untrained", "workers_lost",
             "pushes_lost"]
    return [a[name] for name in names] == [b[name] for name in names]


def test_a_host_installs_trains_removes_and_purges(host, packages, tmp_path):
    prepare(host)
    install(host, [package(packages, name) for name in built(packages)])
    assert state_of(host, "psd") == "active" and host.property("psd", "NRestarts") == "0"
    assert "ready, ok" in host.run("psctl", "status")
    assert host.run("systemctl", "is-enabled", "psd").strip() == "enabled"

    conf, pid = host.root / "etc/psd/psd.conf", main_pid(host, "psd")
    conf.write_text(conf.read_text().replace("log-max = 8G\n", "log-max = 4G\n"))
    host.run("systemctl", "reload", "psd")
    wait_for("settings that were read again", lambda: "in force now: log-max" in host.journal("psd"))
    assert main_pid(host, "psd") == pid

    text = job(2)
    host.write("etc/psd/jobs/adult.conf", text.format(data="/srv"))
    host.run("systemctl", "start", "psworker@adult")
    await_end(host, "psworker@adult")
    got = result(host.root / "var/lib/private/psworker/adult/result.json")
    assert same(got, trained_here(tmp_path, text)), got

    host.run("sh", "-c", "cd /srv && cc -Wall -Werror -o demo /usr/share/doc/libpsd-dev/examples/demo.c $(pkg-config --cflags --libs psd)")
    assert "3 keys, 100 steps: the first weight is 1.00\n" in host.run("/srv/demo", "psd://127.0.0.1:7070/demo")
    static = "cd /srv && cc -o static /usr/share/doc/libpsd-dev/examples/demo.c -l:libpsd.a $(pkg-config --static --libs psd | sed s/-lpsd//)"
    host.run("sh", "-c", static)
    assert "3 keys, 100 steps: the first weight is 1.00\n" in host.run("/srv/static", "psd://127.0.0.1:7070/demo2")
    assert "pushed 50 lowest 50 highest 50 lost 0\n" in host.run("/usr/bin/python3", "/srv/count.py", "psd://127.0.0.1:7070", input="stop\n")
    assert "127.0.0.1" in host.run("/usr/bin/python3", "-c", "import psd\nwith psd.local() as server: print(server.url)")

    host.run("dpkg", "--remove", *built(packages))
    assert state_of(host, "psd") == "inactive" and not (host.root / "usr/bin/psd").exists()
    assert conf.exists() and not (host.root / "usr/lib/python3/dist-packages/psd").exists()
    said = host.run("dpkg", "--purge", *built(packages))
    assert "are left in /var/lib/psd" in said and "is left in /var/lib/psworker" in said
    assert not conf.exists()
    assert list((host.root / "var/lib/private/psd/checkpoints").iterdir()), "a purge leaves the tables"

    install(host, [package(packages, name) for name in NAMES])
    assert "adult" in host.run("psctl", "tables"), "what was left is there again"
    host.run("systemctl", "enable", "psd@x", "psworker@x", "psserve@x")
    for flag in ("etc/psd/purge-data", "etc/psd/jobs/purge-data"):
        host.write(flag, "")
    host.run("dpkg", "--purge", *NAMES)
    assert not [link for link in (host.root / "etc/systemd/system").rglob("ps*@*.service") if link.is_symlink()], "links to units that are gone"
    assert list((host.root / "var/lib/private").iterdir()) == [] and not (host.root / "etc/psd/purge-data").exists()


def newer(packages, folder, name):
    """The same package of a version to come, whose psd.conf has another comment."""
    folder.mkdir(exist_ok=True)
    run("dpkg-deb", "-R", package(packages, name), folder / name)
    control = folder / name / "DEBIAN/control"
    control.write_text(control.read_text().replace(VERSION, VERSION + "+2"))
    conf = folder / name / "etc/psd/psd.conf"
    if conf.exists():
        conf.write_text("# Settings of a version to come.\n" + conf.read_text())
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", folder / name, folder / f"{name}_{VERSION}+2.deb")
    return folder / f"{name}_{VERSION}+2.deb"


def start_nodes(host):
    """Two nodes of a cluster beside psd.service."""
    conf = (ROOT / "deploy/psd.conf").read_text()
    conf = conf.replace("cluster =\n", "cluster = 127.0.0.1:7170,127.0.0.1:7270\n").replace("shards = 0\n", "shards = 1\n")
    for i, name in enumerate("ab"):
        mine = conf.replace("127.0.0.1:7070\n", f"127.0.0.1:7{i + 1}70\n").replace("127.0.0.1:7071\n", f"127.0.0.1:7{i + 1}71\n")
        host.write(f"etc/psd/nodes/{name}.conf", mine.replace("node = 0\n", f"node = {i}\n"))
    host.run("systemctl", "enable", "--now", "psd@a", "psd@b")


def test_an_upgrade_under_training_loses_no_push(host, packages, tmp_path):
    prepare(host)
    text = job(120)
    here = trained_here(tmp_path, text)
    install(host, [package(packages, name) for name in built(packages)])
    start_nodes(host)
    conf = host.root / "etc/psd/psd.conf"
    conf.write_text(conf.read_text().replace("checkpoint-every = 10m\n", "checkpoint-every = 9m\n"))
    host.write("etc/psd/jobs/adult.conf", text.format(data="/srv"))
    host.run("systemctl", "start", "psworker@adult")
    counters = [host.start("/usr/bin/python3", "/srv/count.py", f"psd://127.0.0.1:{port}") for port in (7070, 7170)]
    assert [c.stdout.readline() for c in counters] == ["counting\n"] * 2
    host.run("systemctl", "start", "psserve@adult")
    units = ["psd", "psd@a", "psd@b", "psserve@adult"]
    before = {unit: main_pid(host, unit) for unit in units + ["psworker@adult"]}

    install(host, [newer(packages, tmp_path / "newer", name) for name in built(packages)], "--force-confold")
    assert f"{VERSION}+2" in host.run("dpkg-query", "-W", "psd")
    assert state_of(host, "psworker@adult") == "active", "the job has ended before the upgrade: it takes more epochs"
    assert main_pid(host, "psworker@adult") == before["psworker@adult"], "what trains goes on with the program that it has"
    for unit in units:
        assert main_pid(host, unit) not in (0, before[unit]) and host.property(unit, "NRestarts") == "0", host.journal(unit)
    assert "checkpoint-every = 9m\n" in conf.read_text() and (conf.parent / "psd.conf.dpkg-dist").exists()

    for counter in counters:  # pushes to the new ones
        counter.stdin.write("more\n")
        counter.stdin.flush()
        assert counter.stdout.readline() == "counting\n"
    for counter in counters:
        said, _ = counter.communicate("stop\n", timeout=120)
        n = re.search(r"pushed (\d+)", said)[1]
        assert int(n) > 50 and said == f"pushed {n} lowest {n} highest {n} lost 0\n", said
    host.run("systemctl", "stop", "psserve@adult")
    await_end(host, "psworker@adult")
    got = result(host.root / "var/lib/private/psworker/adult/result.json")
    assert same(got, here) and got["pushes_lost"] == 0 and got["reconnects"] >= 1, (got, here)
    assert sorted(p.name for p in (host.root / "var/lib/private/psd-nodes").iterdir()) == ["a", "b"]


def test_systemd_keeps_a_node_that_dies_freezes_or_has_no_disk(host, packages):
    """What is acknowledged under --durability fsync is there after each of them."""
    prepare(host)
    host.write("etc/systemd/system/psd.service.d/test.conf", "[Service]\nWatchdogSec=3s\n")
    data = "/var/lib/private/psd"
    host.run("sh", "-c", f"mkdir -p -m 700 /var/lib/private && mkdir {data} && mount -t tmpfs -o size=32m disk {data}")
    install(host, [package(packages, name) for name in ("psd", "psctl", "libpsd1", "python3-psd")])
    conf = host.root / "etc/psd/psd.conf"
    conf.write_text(conf.read_text().replace("durability = async\n", "durability = fsync\n"))
    host.run("systemctl", "restart", "psd")
    counter = host.start("/usr/bin/python3", "/srv/count.py", "psd://127.0.0.1:7070")
    assert counter.stdout.readline() == "counting\n"
    for n, signal in enumerate(["KILL", "STOP"], 1):
        died = main_pid(host, "psd")
        host.run("systemctl", "kill", f"--signal={signal}", "psd")
        wait_for("another start", lambda: int(host.property("psd", "NRestarts")) >= n and state_of(host, "psd") == "active")
        assert main_pid(host, "psd") != died
    assert "Watchdog timeout" in host.run("journalctl", "--no-pager", "-o", "cat", "-u", "psd")

    host.run("sh", "-c", f"dd if=/dev/zero of={data}/filler bs=4k", status=1)
    wait_for("a node that says what it lacks", lambda: "ready, ok" not in host.run("psctl", "status", status=None))
    assert state_of(host, "psd") == "active" and "No space left on device" in host.journal("psd")
    host.run("sh", "-c", f"rm {data}/filler")
    wait_for("a node that is well again", lambda: "ready, ok" in host.run("psctl", "status", status=None))

    said, _ = counter.communicate("stop\n", timeout=120)
    n = re.search(r"pushed (\d+)", said)[1]
    assert said == f"pushed {n} lowest {n} highest {n} lost 0\n", said
    host.run("systemctl", "stop", "psd")
    assert host.property("psd", "Result") == "success"
