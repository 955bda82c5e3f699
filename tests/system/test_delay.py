"""Delay compensation (DC-ASGD) from psworker to the servers: what it changes, that a log gives it back bit by bit, and what it is refused with."""
import json
import shutil
import subprocess

import pytest
from training import BIN, finish, psds, psworker, result, synth, train  # noqa: F401

MODEL = ("--format", "criteo", "--bottom", "16", "--top", "16", "--dim", "4", "--batch", 32)


@pytest.fixture
def data(tmp_path):
    return (*MODEL, "--data", synth(tmp_path / "all.tsv", rows=3000, cardinality=50), "--valid-fraction", "0.2")


@pytest.mark.parametrize("flags", [
    ("--push-codec", "fp32", "--optimizer", "sgd", "--lr", "0.1", "--wide"),
    ("--push-codec", "onebit", "--table-storage", "bf16", "--delay-form", "constant"),
], ids=["sgd", "onebit"])
def test_the_log_of_compensated_pushes_leads_to_the_same_bits(psds, data, tmp_path, flags):
    node = psds("--shards", 2, "--durability", "fsync", dir=tmp_path / "psd")
    job = ("train", *data, *flags, "--mode", "async", "--workers", 2, "--servers", node.address, "--delay-compensation", 2, "--json", "-")
    outs = [finish(p)[0] for p in [psworker(*job, "--rank", rank) for rank in range(2)]]
    assert result(outs[0])["logloss"] < 1
    shutil.copytree(tmp_path / "psd/data", tmp_path / "log", ignore=shutil.ignore_patterns("*.tmp"))  # they come and go
    assert not list((tmp_path / "log").glob("checkpoints/*"))
    subprocess.run([BIN / "psctl", "checkpoint", "--server", node.address], check=True, capture_output=True)
    node.kill()
    got = subprocess.run([BIN / "psctl", "diff", tmp_path / "log", tmp_path / "psd/data/checkpoints/1", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(got.stdout)["same"], got.stdout


def test_one_worker_without_delay_learns_the_same_bits(psds, data):
    """Its gradients are those of the weights as they are."""
    node = psds()
    flags = (*data, "--mode", "ssp", "--staleness", 0, "--warmup", 0, "--servers", node.address)
    runs = (("plain", 0, 0), ("compensated", 100, 0), ("cached", 100, "64M"))
    ends = [train(*flags, "--job", job, "--delay-compensation", x, "--row-cache", cache) for job, x, cache in runs]
    assert len({(end["auc"], end["logloss"]) for end in ends}) == 1


@pytest.mark.parametrize("flags, says", [
    (("--mode", "bsp"), "--delay-compensation goes with --mode ssp or async"),
    (("--mode", "async", "--device", "cuda"), "--delay-compensation goes with --device cpu"),
    (("--mode", "async", "--push-codec", "topk"), "--delay-compensation goes with push codecs that send each gradient"),
    (("--mode", "async", "--dense-push-codec", "auto"), "--delay-compensation goes with push codecs that send each gradient"),
    (("--mode", "async", "--field", "C1:push-codec=topk"), "--delay-compensation goes with push codecs that send each gradient"),
])
def test_what_cannot_be_compensated_is_refused(data, flags, says):
    _, err = finish(psworker("train", *data, "--delay-compensation", 2, *flags), status=2)
    assert says in err
