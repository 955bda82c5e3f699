"""Commands of the guides that need machines of their own run there, as they are written: guides.py says how a block is marked.

machines: network namespaces, A at 10.0.0.1 to E at 10.0.0.5. A line that starts psd runs where its --listen says and stays; `# machine X` at a
line's end says where another one runs, else it is C; `when X is dead` kills the psd there first. Each begins in a folder with the secret `token`.
systemd: one host with systemd, which has Debian's packages in its folder; the blocks of all guides run there one after the other."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import BIN, ROOT
from guides import COMMAND, GUIDES, PLACES, blocks, lines, run_on
from host import host  # noqa: F401
from test_packages import built, package, packages  # noqa: F401
from training import wait_for

sys.path.append(str(ROOT / "tests/ha"))
from networks import Networks  # noqa: E402 (the path is set first)

LONGEST_S = 120
SECRET = "a secret of the guides\n"
# psctl refuses while the other end does not know yet what has just happened: the guide says to repeat the command.
REPEATED = re.compile(r"^psctl (promote|switch|status|cluster)\b")


def test_no_command_is_left_out():
    for page in GUIDES:
        for block in blocks(page):
            assert block.kind in ["sh", "text", "c", "python"], f"{block}: a block of kind {block.kind!r}"
            assert block.how != "run on" or block.mark in PLACES, f"{block}: nobody runs what is marked {block.mark!r}"
            assert block.how != "not run" or len(block.mark) > 10, f"{block}: not run, and no reason is given"
            named = re.match(r"tests/\S+\.py", block.mark or "")
            assert not named or (ROOT / named[0]).exists(), f"{block}: {named[0]} is not there"
            assert block.kind != "text" or page.name == "reference.md" or not COMMAND.search(block.text), f"{block}: commands in a block that nobody runs: {COMMAND.search(block.text)[0]}"
        assert page.read_text().count("<!-- run on:") + page.read_text().count("<!-- not run:") == sum(b.how is not None for b in blocks(page)), page
    assert all(run_on(place) for place in PLACES)


# --- machines ---


def run_on_host(host, text):
    words = host.command("sh", "-ec", "PATH=/usr/local/bin:$PATH; cd /srv/guide; " + text)
    return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=LONGEST_S, stdin=subprocess.DEVNULL)


class Machines:
    def __init__(self, folder, booted=None):
        self.folder, self.host = folder, booted
        self.networks = Networks("ABCDE", "10.0.0", {"A": booted.leader} if booted else {})
        self.holders, self.psds, self.settings, self.others = {}, {}, "", []

    def __enter__(self):
        self.networks.__enter__()
        for name in "ABCDE":
            self.home(name).mkdir()
            (self.home(name) / "token").write_text(SECRET)
            (self.home(name) / "token").chmod(0o600)
            # A process that holds its files: /var/lib and /etc/psd are its own.
            own = ("mount -t tmpfs -o mode=755 own /var/lib && mkdir -p /var/lib/etc/upper/psd /var/lib/etc/work && "
                   "mount -t overlay -o lowerdir=/etc,upperdir=/var/lib/etc/upper,workdir=/var/lib/etc/work own /etc && "
                   f"cp -p {self.home(name)}/token /etc/psd && echo && exec cat")
            self.holders[name] = subprocess.Popen(self.networks.inside(name, "sh", "-c", own), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                  stderr=subprocess.PIPE, text=True)
        for holder in self.holders.values():
            if not holder.stdout.readline():
                pytest.skip(f"a machine of its own cannot be made here: {holder.stderr.read()}")
        return self

    def __exit__(self, *_):
        for process in [*self.psds.values(), *self.others, *self.holders.values()]:
            process.kill()
            process.communicate()
        self.networks.__exit__()

    def home(self, name):
        return self.folder / name

    def command(self, name, text):
        path = f"PATH={BIN}:{os.environ['PATH']}"
        return ["nsenter", "-t", str(self.holders[name].pid), "-m", "-n", f"--wd={self.home(name)}", "env", path, "bash", "-ec", self.settings + text]

    def run(self, name, text):
        if name == "A" and self.host:
            return run_on_host(self.host, text)
        return subprocess.run(self.command(name, text), capture_output=True, text=True, timeout=LONGEST_S)

    def log(self, name):
        return self.home(name) / "psd.log"

    def start_psd(self, name, text):
        with open(self.log(name), "a") as log:
            self.psds[name] = subprocess.Popen(self.command(name, f"exec {text}"), stderr=log)
        started = r"psd ready|in sync" if "--standby" in text else r"psd ready"

        def has_started():
            assert self.psds[name].poll() is None, self.log(name).read_text()
            return re.search(started, self.log(name).read_text())
        wait_for(f"psd on machine {name}", has_started)

    def kill_psd(self, name):
        self.psds[name].kill()
        self.psds[name].wait()

    def line(self, text, comment):
        dead = re.search(r"when (\w) is dead", comment)
        if dead:
            self.kill_psd(dead[1])
        if re.match(r"\w+=", text):
            self.settings += text + "\n"
        elif text.startswith("psd "):
            address = re.search(r"--listen 10\.0\.0\.(\d)", text)[1]
            self.start_psd("ABCDE"[int(address) - 1], text)
        else:
            where = re.search(r"machine (\w)", comment)
            got = []

            def succeeds():
                got[:] = [self.run(where[1] if where else "C", text)]
                return got[0].returncode == 0 or not REPEATED.match(text)
            wait_for(text, succeeds, 30)
            assert got[0].returncode == 0, f"{text}: {got[0].stdout}{got[0].stderr}"

    def block(self, block):
        steps = lines(block)
        if any(re.match(r"psd |systemctl |sudo ", text) for text, _ in steps):
            for text, comment in steps:
                self.line(text, comment)
        else:
            got = self.run("A", block.text)
            assert got.returncode == 0, got.stdout + got.stderr

    # --- what a block needs that its guide has described before ---

    def prepare(self, block):
        if block.page.name == "training.md":
            self.write_logs()
            with open(self.log("A"), "w") as log:
                self.psds["A"] = subprocess.Popen(self.command("A", "exec psd --listen 0.0.0.0:7070 --insecure"), stderr=log)
        if "$etcd" in block.text:
            self.start_etcd()

    def write_logs(self):
        home = self.home("A")
        synth = [BIN / "psworker", "synth", "--rows", "500", "--output"]
        for name in ("logs/day1.tsv", "day7.tsv.zst"):
            (home / name).parent.mkdir(exist_ok=True)
            subprocess.run([*synth, home / name], check=True, capture_output=True)
        (home / "unlabelled").mkdir()
        labelled = (home / "logs/day1.tsv").read_text().splitlines()
        (home / "unlabelled/day8.tsv").write_text("".join(line.split("\t", 1)[1] + "\n" for line in labelled))
        conf = (ROOT / "deploy/psworker.conf").read_text()
        conf = re.sub(r"^data = .*", f"data = {home}/logs", conf, flags=re.M)
        conf = re.sub(r"^valid = .*", f"valid = {home}/day7.tsv.zst", conf, flags=re.M)
        conf = re.sub(r"^(bottom|top) = .*", r"\1 = 16", conf, flags=re.M)
        (home / "criteo.conf").write_text(conf)

    def start_etcd(self):
        if not shutil.which("etcd"):
            pytest.skip("there is no etcd on PATH (Debian: etcd-server)")
        members = ",".join(f"{name}=http://{self.networks.address(name)}:2380" for name in "CDE")
        for name in "CDE":
            address = self.networks.address(name)
            text = (f"exec etcd --name {name} --data-dir etcd --listen-client-urls http://{address}:2379 --advertise-client-urls http://{address}:2379 "
                    f"--listen-peer-urls http://{address}:2380 --initial-advertise-peer-urls http://{address}:2380 --initial-cluster {members}")
            self.others.append(subprocess.Popen(self.command(name, text), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


@pytest.mark.parametrize("block", run_on("machines"), ids=str)
def test_commands_for_several_machines(block, tmp_path):
    with Machines(tmp_path) as machines:
        machines.prepare(block)
        machines.block(block)


# --- one host with systemd ---


def maintain(host, block, folder):
    """A, with the packages and a secret as a credential, has a standby at B."""
    with Machines(folder, host) as machines:
        conf = host.root / "etc/psd/psd.conf"
        before = conf.read_text()
        conf.write_text(before.replace("listen = 127.0.0.1:7070", "listen = 10.0.0.1:7070"))
        (host.root / "etc/psd/token").write_text(SECRET)
        host.run("systemctl", "restart", "psd")
        machines.start_psd("B", "psd --listen 10.0.0.2:7070 --token-file token --data-dir /var/lib/psd --standby 10.0.0.1:7070")
        machines.block(block)
        conf.write_text(before)


def test_commands_for_a_host_with_systemd(host, packages, tmp_path):
    (host.root / "var/lib/man-db/auto-update").unlink(missing_ok=True)  # an index of man pages takes dpkg ten seconds
    guide = host.root / "srv/guide"
    guide.mkdir(parents=True)
    for name in built(packages):
        shutil.copy(package(packages, name), guide)
    for name, text in {"sudo": 'exec "$@"', "journalctl": 'for word; do shift; [ "$word" = -f ] || set -- "$@" "$word"; done\nexec /bin/journalctl "$@"',
                       "apt-get": 'exec /usr/bin/apt-get -y "$@"'}.items():
        host.write(f"usr/local/bin/{name}", f"#!/bin/sh\n{text}\n")
        (host.root / f"usr/local/bin/{name}").chmod(0o755)
    (tmp_path / "machines").mkdir()
    for block in sorted(run_on("systemd") + run_on("machines, A with systemd"), key=lambda block: block.page.name != "operations.md"):
        if "LoadCredential" in block.text:
            run_on_host(host, "systemctl disable --now psd@a psd@b; systemctl enable --now psd")
        if "demo.c" in block.text:
            host.run("sh", "-ec", "cd /srv/guide; systemctl disable --now psd; dpkg --force-unsafe-io -i libpsd*.deb; cp /usr/share/doc/libpsd-dev/examples/demo.c .")
        if block.mark != "systemd":
            maintain(host, block, tmp_path / "machines")
            continue
        got = run_on_host(host, block.text)
        assert got.returncode == 0, f"{block}: {got.stdout}{got.stderr}"


# --- the source tree ---


@pytest.mark.parametrize("block", run_on("the source tree"), ids=str)
def test_commands_for_the_source_tree(block, tmp_path):
    """In a folder that looks like it, with a loopback network of its own; what still runs at the end is killed."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for path in ROOT.iterdir():
        (tree / path.name).symlink_to(path)
    text = "ip link set lo up\n" + block.text.replace("/tmp/", f"{tmp_path}/")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here: it takes root")
    with open(tmp_path / "printed", "w") as printed:
        got = subprocess.run([*alone, "bash", "-ec", text], cwd=tree, env=env, stdout=printed, stderr=printed, timeout=LONGEST_S, stdin=subprocess.DEVNULL)
    assert got.returncode == 0, (tmp_path / "printed").read_text()
