"""An earlier psd's data, and an earlier psworker, work with this build, and this build's psworker with an earlier psd: formats and the wire stay.

The earlier commit is built from the repository's own history, once, under build/before; skipped where the history lacks it."""
import fcntl
import os
import pathlib
import subprocess

import pytest

import training
from checkpoint import read_tables
from training import BIN, ROOT, Psd, finish, result, synth

BEFORE = "4935f68de7b21a0fb65f4c347fa77c9a47a23af9"
FLAGS = ("--format", "criteo", "--job", "ctr", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", 64, "--seed", "7", "--push-codec", "onebit",
         "--dense-push-codec", "topk", "--topk", "0.1", "--device", "cpu", "--json", "-")


def build_before(source):
    """Its programs, from a copy of the tree as it was."""
    if not source.exists():
        half = source.with_suffix(".half")
        subprocess.run(["rm", "-rf", half], check=True)
        half.mkdir(parents=True)
        tree = subprocess.run(["git", "-C", ROOT, "archive", BEFORE], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", half], input=tree, check=True)
        half.rename(source)
    # PS_BIN's variant does not matter: the programs speak to each other.
    programs = [f"build/release/bin/{name}" for name in ("psd", "psworker")]
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "VARIANT", "BUILD")}
    done = subprocess.run(["make", "-j2", *programs], cwd=source, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return source / "build/release/bin"


@pytest.fixture(scope="module")
def before():
    """The folder of the earlier programs."""
    if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{BEFORE}^{{commit}}"], capture_output=True).returncode:
        pytest.skip(f"the history has no commit {BEFORE[:7]}")
    folder = ROOT / "build/before"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side build it once
        return build_before(folder / BEFORE[:12])


@pytest.fixture
def node(tmp_path, monkeypatch):
    """node(bin, folder) starts a psd of that build."""
    started = []

    def start(bin_dir, folder):
        monkeypatch.setattr(training, "BIN", pathlib.Path(bin_dir))
        started.append(Psd(tmp_path / folder, "--shards", 2, "--durability", "fsync", "--checkpoint-every", "0s"))
        return started[-1]

    yield start
    for psd in started:
        psd.kill()


def train(bin_dir, psd, data, state):
    worker = subprocess.Popen([pathlib.Path(bin_dir) / "psworker", "train", "--data", data, "--servers", psd.address, "--state-dir", state,
                               *map(str, FLAGS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return result(finish(worker)[0])


def halves(tmp_path):
    lines = synth(tmp_path / "log.tsv", 4096).read_text().splitlines(keepends=True)
    for n in range(2):
        (tmp_path / f"half{n}.tsv").write_text("".join(lines[n * 2048:(n + 1) * 2048]))
    return [tmp_path / f"half{n}.tsv" for n in range(2)]


def run(tmp_path, node, name, psds, workers):
    """Two halves of a run in lock step; kill -9 between, so that the second psd starts from the log. What its checkpoint holds at the end."""
    for psd_bin, worker_bin, half in zip(psds, workers, halves(tmp_path)):
        psd = node(psd_bin, name)
        assert train(worker_bin, psd, half, tmp_path / f"{name}-state")["samples"] == 2048
        if psd_bin is psds[0] and half.name == "half0.tsv":
            psd.kill()
    psd.stop()
    return read_tables([psd.data])


@pytest.fixture
def this(tmp_path, node):
    """What this build alone comes to."""
    return run(tmp_path, node, "this", (BIN, BIN), (BIN, BIN))


def test_a_data_directory_and_a_state_directory_of_before_go_on_here(before, this, node, tmp_path):
    assert run(tmp_path, node, "data", (before, BIN), (before, BIN)) == this


def test_a_worker_of_before_trains_on_this_psd(before, this, node, tmp_path):
    assert run(tmp_path, node, "worker", (BIN, BIN), (before, before)) == this


def test_this_worker_trains_on_a_psd_of_before(before, this, node, tmp_path):
    assert run(tmp_path, node, "server", (before, before), (BIN, BIN)) == this
