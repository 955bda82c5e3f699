"""A host of its own with systemd in it, for tests that install packages: systemd-nspawn on an overlay of this machine's root, which stays as it
is. It has a loopback network only, boots in some seconds, and needs root. What cannot run here skips the test, with the reason."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from training import wait_for

BOOT_S = 90
# Of the machine's processes each host is a branch of its own: systemd takes it over whole. Hierarchies of cgroup v1, or the one of v2.
CGROUPS = [p for p in map(pathlib.Path, ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"])
           if (p / "cgroup.procs").exists()]
ENTER = ["-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8",
         "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"]


def remove_cgroup(cgroup):
    """False while a process of it is still ending."""
    try:
        for folder, _, _ in os.walk(cgroup, topdown=False):
            os.rmdir(folder)
    except OSError:
        return False
    return True


class Host:
    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "root"
        self.boot_log = folder / "boot.log"
        self.cgroups = [c / f"psd-test-{os.getpid()}-{folder.name}" for c in CGROUPS]
        self.mounts = []
        self.nspawn = None
        self.leader = None
        self.started = []

    # --- boot and end ---

    def boot(self):
        for folder in ("layer", "root"):
            (self.folder / folder).mkdir()
        self.mount("tmpfs", "psd-test", self.folder / "layer", "size=2g")
        for folder in ("upper", "work"):
            (self.folder / "layer" / folder).mkdir()
        layer = self.folder / "layer"
        self.mount("overlay", "psd-test", self.root, f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work")
        self.prepare()
        try:
            for cgroup in self.cgroups:
                cgroup.mkdir()
        except OSError as e:
            pytest.skip(f"no cgroup can be made here: {e}")
        moves = "".join(f"echo $$ >{c}/cgroup.procs; " for c in self.cgroups)
        with open(self.boot_log, "wb") as log:
            self.nspawn = subprocess.Popen(
                ["sh", "-c", moves + 'exec "$@"', "sh", "systemd-nspawn", "-q", "-D", self.root, "-M", f"psd-test-{os.getpid()}", "--boot",
                 "--private-network", "--register=no", "--keep-unit", "--link-journal=no"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.await_boot()

    def mount(self, kind, source, target, options):
        got = subprocess.run(["mount", "-t", kind, "-o", options, source, target], capture_output=True, text=True)
        if got.returncode:
            pytest.skip(f"{kind} cannot be mounted here: {got.stderr.strip()}")
        self.mounts.append(target)

    def prepare(self):
        """As a machine that has just been set up: packages may start services, and none of the machine's own starts."""
        for file in ("usr/sbin/policy-rc.d", "etc/psd", "var/lib/psd", "var/lib/private"):
            path = self.root / file
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (self.root / "etc/machine-id").write_text("")
        for wanted in (self.root / "etc/systemd/system").glob("*.wants"):
            shutil.rmtree(wanted)

    def await_boot(self):
        end = time.monotonic() + BOOT_S
        state = "no systemd"
        while time.monotonic() < end and self.nspawn.poll() is None:
            children = subprocess.run(["pgrep", "-P", str(self.nspawn.pid)], capture_output=True, text=True).stdout.split()
            if children:
                self.leader = children[0]
                state = self.run("systemctl", "is-system-running", status=None).strip()
                if state in ("running", "degraded"):
                    return
            time.sleep(0.1)
        pytest.skip(f"systemd does not boot in a container here ({state}): {self.boot_log.read_text(errors='replace')[-500:]}")

    def end(self):
        """As if its power went: all its processes end with the first of them."""
        if self.leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.leader), signal.SIGKILL)
        if self.nspawn:
            try:
                self.nspawn.wait(20)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
        for process in self.started:
            process.kill()
            process.communicate()
        for target in reversed(self.mounts):
            if subprocess.run(["umount", target], capture_output=True).returncode:
                subprocess.run(["umount", "-l", target], check=True)
        for cgroup in self.cgroups:
            wait_for("the end of the host's processes", lambda: remove_cgroup(cgroup), 30)

    # --- use ---

    def command(self, *args):
        return ["nsenter", "-t", self.leader, *ENTER, *map(str, args)]

    def run(self, *args, status=0, seconds=120, **more):
        """What it prints; the test fails unless it ends with `status` (None: with any)."""
        got = subprocess.run(self.command(*args), capture_output=True, text=True, errors="replace", timeout=seconds, **more)
        assert status is None or got.returncode == status, f"{args}: {got.returncode}\n{got.stdout}{got.stderr}"
        return got.stdout + got.stderr

    def start(self, *args):
        self.started.append(subprocess.Popen(self.command(*args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                             text=True))
        return self.started[-1]

    def write(self, path, text):
        path = self.root / path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def property(self, unit, name):
        return self.run("systemctl", "show", "-P", name, unit).strip()

    def journal(self, unit):
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, status=None)


@pytest.fixture
def host(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a host of its own needs root")
    for tool in ("systemd-nspawn", "nsenter", "pgrep"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is missing: apt-get install systemd-container procps")
    host = Host(tmp_path)
    try:
        host.boot()
        yield host
    finally:
        host.end()
