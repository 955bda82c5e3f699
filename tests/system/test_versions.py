"""An earlier psd's data, and an earlier psworker, work with this build, and this build's psworker with an earlier psd: formats and the wire stay.

The earlier commit is built from the repository's own history, once, under build/before; skipped where the history lacks it, but not in CI."""
import pathlib
import subprocess

import pytest

import earlier
import training
import wire
from checkpoint import read_tables
from training import BIN, Psd, finish, result, synth
from wire import STATUS

BEFORE = earlier.WITHOUT_STANDBYS
FLAGS = ("--format", "criteo", "--job", "ctr", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", 64, "--seed", "7", "--push-codec", "onebit",
         "--dense-push-codec", "topk", "--topk", "0.1", "--device", "cpu", "--json", "-",
         # Which of these are chosen where nothing is said differs from version to version.
         "--lr", "0.01", "--init-scale", "0.05", "--dense-optimizer", "same")


@pytest.fixture(scope="module")
def before():
    """The folder of the earlier programs."""
    return earlier.build(BEFORE, "psd", "psworker")


@pytest.fixture
def node(tmp_path, monkeypatch):
    """node(bin, folder) starts a psd of that build."""
    started = []

    def start(bin_dir, folder, n_shards=2, *more):
        monkeypatch.setattr(training, "BIN", pathlib.Path(bin_dir))
        started.append(Psd(tmp_path / folder, "--shards", n_shards, "--durability", "fsync", "--checkpoint-every", "0s", *more))
        return started[-1]

    yield start
    for psd in started:
        psd.kill()


def train(bin_dir, psd, data, state, *more):
    worker = subprocess.Popen([pathlib.Path(bin_dir) / "psworker", "train", "--data", data, "--servers", psd.address, "--state-dir", state,
                               *map(str, FLAGS), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return result(finish(worker)[0])


# How the psds before the last one end: what the next one starts from is a log; a full checkpoint; a full one and what has changed since.
ENDS = [("kill",), ("stop",), ("stop", "stop"), ("stop", "kill")]
endings = pytest.mark.parametrize("ends", ENDS, ids=["log", "checkpoint", "full and delta checkpoint", "checkpoint and log"])


def pieces(tmp_path, n):
    lines = synth(tmp_path / "log.tsv", 4096).read_text().splitlines(keepends=True)
    size = 4096 // 64 // n * 64
    for i in range(n):
        (tmp_path / f"piece{i}.tsv").write_text("".join(lines[i * size:(i + 1) * size if i < n - 1 else None]))
    return [tmp_path / f"piece{i}.tsv" for i in range(n)]


def run(tmp_path, node, name, first, last, ends, *more):
    """A run in lock step in pieces, the last by other builds of (psd, psworker) than those before. What psd's checkpoint holds at the end."""
    # What this build begins has keys by position, as before; what it goes on with keeps them by itself.
    scheme = ("--key-scheme", "position") if first[1] == BIN else ()
    for piece, end in zip(pieces(tmp_path, len(ends) + 1), (*ends, "last")):
        psd_bin, worker_bin = last if end == "last" else first
        psd = node(psd_bin, name, 2, *(more if psd_bin == BIN else ()))
        assert train(worker_bin, psd, piece, tmp_path / f"{name}-state", *scheme)["samples"] > 0
        psd.kill() if end == "kill" else psd.stop()
        scheme = ()
    tables = read_tables([psd.data])
    assert ("ctr/model" in tables) == (first[1] == BIN)  # the record of the model, which no earlier psworker made
    tables.pop("ctr/model", None)
    return tables


@pytest.fixture
def this(tmp_path, node):
    """What this build alone comes to."""
    return lambda ends: run(tmp_path, node, "this", (BIN, BIN), (BIN, BIN), ends)


@endings
def test_a_data_directory_and_a_state_directory_of_before_go_on_here(before, this, node, tmp_path, ends):
    assert run(tmp_path, node, "data", (before, before), (BIN, BIN), ends) == this(ends)


@endings
def test_a_data_directory_and_a_state_directory_of_this_build_go_on_there(before, this, node, tmp_path, ends):
    assert run(tmp_path, node, "back", (BIN, BIN), (before, before), ends, "--drop-learning") == this(ends)


def test_a_worker_of_before_trains_on_this_psd(before, this, node, tmp_path):
    assert run(tmp_path, node, "worker", (BIN, before), (BIN, before), ("kill",)) == this(("kill",))


def test_a_worker_of_before_cannot_train_a_job_whose_keys_are_by_name(before, node, tmp_path):
    """It has other keys, and would make rows that nobody finds."""
    psd = node(BIN, "named")
    piece = pieces(tmp_path, 1)[0]
    train(BIN, psd, piece, tmp_path / "state")
    old = subprocess.run([before / "psworker", "train", "--data", piece, "--servers", psd.address, *map(str, FLAGS)], capture_output=True, text=True)
    assert old.returncode == 2 and "table ctr/emb: seed is " in old.stderr


def test_this_worker_trains_on_a_psd_of_before(before, this, node, tmp_path):
    assert run(tmp_path, node, "server", (before, BIN), (before, BIN), ("kill",)) == this(("kill",))


def test_a_data_directory_of_before_is_whole_here_and_its_rows_go_to_other_shards(before, node, tmp_path):
    for piece in pieces(tmp_path, 2):  # a full checkpoint, then what has changed
        psd = node(before, "shards")
        train(before, psd, piece, tmp_path / "shards-state")
        psd.stop()
    want = read_tables([psd.data])
    verify = subprocess.run([BIN / "psctl", "verify", psd.data], capture_output=True, text=True)
    assert verify.returncode == 0, verify.stdout + verify.stderr
    psd = node(BIN, "shards", 3)
    psd.stop()
    assert read_tables([psd.data]) == want


def test_a_rank_that_an_earlier_psd_let_to_the_end_of_its_numbers_goes_on_here(before, node, tmp_path):
    """The start is the cure: nothing else has to be done to such a data directory."""
    for end in ("kill", "stop"):  # in the log, in a checkpoint
        folder = f"top-{end}"
        old = node(before, folder, 1)
        with wire.Wire(int(old.address.rsplit(":", 1)[1])) as client:
            assert client.hello().status == 0
            assert client.join(job="ctr", incarnation=(1 << 64) - 1, clock=1 << 62).status == 0
            assert client.leave().status == 0
            assert client.join(job="ctr", incarnation=5).status == STATUS["EFENCED"]
        old.kill() if end == "kill" else old.stop()
        new = node(BIN, folder, 1)
        with wire.Wire(int(new.address.rsplit(":", 1)[1])) as client:
            assert client.hello().status == 0
            joined = client.join(job="ctr", incarnation=5, clock=3)
            assert (joined.status, joined.number(4)) == (0, 3), joined.text
            assert client.leave().status == 0
        new.stop()


def test_a_psd_of_before_refuses_what_it_has_no_optimizer_for_and_leaves_the_data_as_it_is(before, node, tmp_path):
    piece = pieces(tmp_path, 1)[0]
    old = node(before, "asked")
    flags = ("--data", piece, *map(str, FLAGS), "--optimizer", "adamw", "--dense-optimizer", "lion")
    refused = subprocess.run([BIN / "psworker", "train", "--servers", old.address, *flags], capture_output=True, text=True)
    assert refused.returncode != 0 and "asks for optimizer adamw, which it does not know: upgrade the servers first" in refused.stderr
    for end in ("kill", "stop"):  # in the log, in a checkpoint
        new = node(BIN, "data")
        subprocess.run([BIN / "psworker", "train", "--servers", new.address, *flags], capture_output=True, check=True)
        new.kill() if end == "kill" else new.stop()
        files = {path: path.read_bytes() for path in new.data.rglob("*") if path.is_file() and path.name != "LOCK"}
        start = subprocess.run([before / "psd", "--listen", "127.0.0.1:0", "--data-dir", new.data, "--shards", "2"], capture_output=True, text=True,
                               timeout=60)
        assert start.returncode == 1 and "optimizer is number 6; expected 0 (sgd) to 5 (ftrl)" in start.stdout + start.stderr
        assert {path: path.read_bytes() for path in new.data.rglob("*") if path.is_file() and path.name != "LOCK"} == files
    node(BIN, "data").stop()
