"""Backup workers of lock step: a step goes on without a worker that hangs, and a log leads to the same bits whatever was dropped."""
import json
import shutil
import signal
import subprocess

import pytest
from training import BIN, finish, psds, psworker, result, synth, wait_for  # noqa: F401

MODEL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", 32)


def clocks_of(node):
    """Of the job at each shard: its min clock, and that of each of its live workers by rank."""
    jobs = [job for shard in node.stats()["shards"] for job in shard["jobs"]]
    return [(job["min_clock"], {w["rank"]: w["clock"] for w in job["workers"]}) for job in jobs]


def test_a_worker_that_hangs_holds_nobody_up_and_catches_up(psds, tmp_path):
    node = psds("--shards", 2, "--durability", "fsync", "--lease", "60s", dir=tmp_path / "psd")
    job = ("train", *MODEL, "--data", synth(tmp_path / "all.tsv", rows=3000, cardinality=50), "--epochs", 10000, "--workers", 3,
           "--backup-workers", 1, "--mode", "bsp", "--servers", node.address, "--json", "-")
    workers = [psworker(*job, "--rank", rank) for rank in range(3)]
    wait_for("a step of all", lambda: len(clocks_of(node)) == 2 and all(min(w.values()) > 3 for _, w in clocks_of(node) if len(w) == 3))
    assert node.stats()["jobs"][0]["n_backups"] == 1
    workers[2].send_signal(signal.SIGSTOP)
    frozen_at = max(w[2] for _, w in clocks_of(node))
    wait_for("steps without it", lambda: all(clock > frozen_at + 30 for clock, _ in clocks_of(node)))
    assert all(w[2] < clock for clock, w in clocks_of(node))
    there = min(clock for clock, _ in clocks_of(node))
    workers[2].send_signal(signal.SIGCONT)
    wait_for("it where the job is", lambda: all(w[2] >= there for _, w in clocks_of(node)))
    for w in workers:
        w.send_signal(signal.SIGTERM)
    ends = [result(finish(w)[0]) for w in workers]
    assert sum(end["pushes_late"] for end in ends) > 0
    assert sum(end["rejoins"] for end in ends) == 0

    shutil.copytree(tmp_path / "psd/data", tmp_path / "log", ignore=shutil.ignore_patterns("*.tmp"))  # they come and go
    assert not list((tmp_path / "log").glob("checkpoints/*"))
    subprocess.run([BIN / "psctl", "checkpoint", "--server", node.address], check=True, capture_output=True)
    node.kill()
    got = subprocess.run([BIN / "psctl", "diff", tmp_path / "log", tmp_path / "psd/data/checkpoints/1", "--json"], capture_output=True, text=True,
                         check=True)
    assert json.loads(got.stdout)["same"], got.stdout


@pytest.mark.parametrize("flags, says", [
    (("--workers", 2, "--backup-workers", 2), "--backup-workers must be less than --workers"),
    (("--workers", 2, "--backup-workers", 1, "--mode", "ssp"), "--backup-workers goes with --mode bsp"),
])
def test_what_cannot_be_is_refused(tmp_path, flags, says):
    _, err = finish(psworker("train", *MODEL, "--data", synth(tmp_path / "all.tsv", rows=100), *flags), status=2)
    assert says in err


def test_workers_that_do_not_agree_are_refused(psds, tmp_path):
    node = psds()
    job = ("train", *MODEL, "--data", synth(tmp_path / "all.tsv", rows=100), "--workers", 3, "--mode", "bsp", "--servers", node.address)
    first = psworker(*job, "--rank", 0, "--backup-workers", 1)
    wait_for("the job", lambda: clocks_of(node))
    _, err = finish(psworker(*job, "--rank", 1), status=2)
    assert "runs with 1 backup worker, rank 1 asked for 0" in err
    first.kill()
    first.wait()
