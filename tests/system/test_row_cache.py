"""The exact cache of rows in a job's only worker: the same bits as pulling everything, and what it says when it cannot be exact."""
import os
import random
import shutil
import signal
import struct

import pytest
import wire
from checkpoint import read_tables
from training import finish, free_ports, in_time, psds, psworker, restarted, share, synth, train, wait_for  # noqa: F401

SMALL = ("--format", "criteo", "--bottom", "32", "--top", "32", "--dim", "8", "--batch", "64", "--seed", "7")
SIZES = ("0", "256M", "1")  # none; all rows; next to none, so that rows go all the time


def trained(psds, data, *flags, n_shards=1, runs=1, psd_flags=()):
    """Trains `runs` times on a fresh node; what its checkpoint holds, and the last run's result."""
    node = psds("--shards", n_shards, *psd_flags)
    for _ in range(runs):
        last = train("--data", data, "--servers", node.address, *SMALL, *flags)
    node.stop()
    return read_tables([node.data]), last


@pytest.mark.parametrize("optimizer", share(("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl", "adamw", "lion",
                                             "lamb", "lars", "sm3", "came", "sm3_matrix")))
def test_the_bits_at_the_end_are_those_without_a_cache(psds, tmp_path, optimizer):
    data = synth(tmp_path / "log.tsv", 2000)
    storage = {"momentum": "bf16", "adam": "bf16", "adagrad": "fp16", "ftrl": "fp16", "adamw": "bf16"}.get(optimizer, "fp32")
    n_shards = 3 if optimizer in ("sgd", "adam", "ftrl", "adamw") else 1
    flags = ("--optimizer", optimizer, "--lr", "0.01", "--table-storage", storage, "--wide")
    want, plain = trained(psds, data, *flags, "--row-cache", "0", n_shards=n_shards)
    for size in SIZES[1:]:
        got, r = trained(psds, data, *flags, "--row-cache", size, n_shards=n_shards)
        assert got == want, size
        assert r["rows_cached"] > 0 and r["bytes_in"] < plain["bytes_in"]
        assert 0 <= r["rows_read_ahead"] <= r["rows_cached"] and plain["rows_read_ahead"] == 0


@pytest.mark.parametrize("codec", share(("bf16", "int8", "onebit", "topk")))
def test_lossy_codecs_end_in_the_same_bits_too(psds, tmp_path, codec):
    data = synth(tmp_path / "log.tsv", 1500)
    pull = codec if codec in ("bf16", "int8") else "fp16"
    flags = ("--push-codec", codec, "--pull-codec", pull, "--zstd", "--optimizer", "adagrad", "--mode",
             "ssp" if codec == "int8" else "bsp")
    want, _ = trained(psds, data, *flags, "--row-cache", "0", n_shards=3)
    for size in SIZES[1:]:
        assert trained(psds, data, *flags, "--row-cache", size, n_shards=3, psd_flags=("--compress-replies",))[0] == want, size


def test_a_job_that_goes_on_with_existing_tables_and_validates_ends_in_the_same_bits(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 2500)
    flags = ("--optimizer", "adam", "--lr", "0.01", "--valid-fraction", "0.2", "--eval-every", "10", "--early-stop", "50")
    want, plain = trained(psds, data, *flags, "--row-cache", "0", n_shards=2, runs=2)
    got, r = trained(psds, data, *flags, "--row-cache", "256M", n_shards=2, runs=2)
    assert got == want and r["auc"] == plain["auc"]
    small, r = trained(psds, data, *flags, "--row-cache", "50K", n_shards=2, runs=2)
    assert small == want and r["rows_pulled_again"] > 0


def test_all_that_is_held_is_pulled_once(psds, tmp_path):
    """Three epochs: from the second on nothing is new."""
    data = synth(tmp_path / "log.tsv", 2000)
    _, r = trained(psds, data, "--epochs", "3", "--row-cache", "256M")
    assert r["rows_pulled_again"] == 0
    assert r["rows_cached"] > 0.9 * r["rows_asked"]
    assert r["bytes_in"] < 0.02 * r["bytes_out"]


def test_a_server_with_limited_memory_that_leaves_rows_out_ends_in_the_same_bits(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 4000)
    limit = ("--memory-max", "3M")
    want, plain = trained(psds, data, "--row-cache", "0", psd_flags=limit)
    assert plain["rows_refused"] > 0
    assert trained(psds, data, "--row-cache", "256M", psd_flags=limit)[0] == want


def test_tables_whose_rows_come_late_or_go_are_pulled_plainly(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 2000)
    flags = ("--admit-touches", "2", "--admit-clocks", "100")
    want, _ = trained(psds, data, *flags, "--row-cache", "0")
    got, r = trained(psds, data, *flags, "--row-cache", "256M")
    assert got == want and r["rows_asked"] == 0


def test_a_server_that_is_stopped_and_started_again_loses_nothing(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 6000)
    want, _ = trained(psds, log, "--epochs", "6", "--row-cache", "0", n_shards=2)
    r, data = in_time(lambda n: restarted(psds, tmp_path / f"restarted{n}", "--data", log, *SMALL, "--epochs", "6"))
    assert r["samples"] == 36000
    assert read_tables([data]) == want


def test_a_server_that_was_killed_has_lost_pushes_and_the_cache_begins_anew(psds, tmp_path):
    """It comes back with what its directory was some pushes before: what a kill alone loses is a matter of its moment."""
    log = synth(tmp_path / "log.tsv", 6000)
    port, = free_ports(1)
    node = psds("--shards", 2, listen=f"127.0.0.1:{port}", dir=tmp_path / "killed")
    w = psworker("train", "--data", log, *SMALL, "--epochs", "10000", "--servers", node.address, "--json", "-",
                 "--progress-every", "20ms")
    for _ in range(2):
        assert w.stdout.readline()
    node.proc.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, node.proc.pid, os.WSTOPPED)  # all of its threads
    shutil.copytree(node.data, tmp_path / "before")
    node.proc.send_signal(signal.SIGCONT)
    for _ in range(2):
        assert w.stdout.readline()
    node.kill()
    shutil.rmtree(node.data)
    shutil.move(tmp_path / "before", node.data)
    again = psds("--shards", 2, listen=f"127.0.0.1:{port}", dir=tmp_path / "killed")
    assert any("the row cache begins anew: another worker pushes to this job's tables, or a server has lost pushes" in line for line in w.stderr)
    w.send_signal(signal.SIGTERM)
    finish(w)
    again.stop()


def test_somebody_elses_push_is_seen(psds, tmp_path):
    log = synth(tmp_path / "log.tsv", 6000)
    node = psds("--shards", 1)
    w = psworker("train", "--data", log, *SMALL, "--epochs", "10000", "--servers", node.address, "--json", "-",
                 "--progress-every", "20ms")
    for _ in range(2):
        assert w.stdout.readline()
    with wire.Wire(int(node.address.split(":")[1])) as other:
        assert other.hello().status == 0 and other.join(job="other").status == 0
        table = other.table(must_exist=True, name="job/emb").number(3)
        assert other.push([1, 2, 3], wire.floats(*[0.5] * 24), table=table).status == 0
    notice = "the row cache begins anew: another worker pushes"
    assert any(notice in line for line in w.stderr)
    clock = lambda: max((v["clock"] for j in node.stats()["jobs"] if j["name"] == "job" for v in j["workers"]), default=0)  # reports come later
    before = clock()
    wait_for("many more steps", lambda: clock() > before + 200)
    w.send_signal(signal.SIGTERM)
    _, err = finish(w)
    assert notice not in err  # once
    node.stop()


def state_of(reply, n_keys, payload_bytes):
    """n_pushes, flags, and each key's payload or None, as proto/README.md says."""
    body = reply.body
    n_pushes, flags = struct.unpack_from("<QB", body)
    bits, at = body[9:9 + (n_keys + 7) // 8], 9 + (n_keys + 7) // 8
    rows = []
    for i in range(n_keys):
        here = bits[i // 8] >> i % 8 & 1
        rows.append(body[at:at + payload_bytes] if here else None)
        at += payload_bytes * here
    assert at == len(body) == reply.numbers(5)[0]
    return n_pushes, flags, rows


def test_rows_come_with_their_state_on_the_wire(psds):
    node = psds("--shards", 1)
    with wire.Wire(int(node.address.split(":")[1])) as c:
        assert c.hello().status == 0 and c.join().status == 0
        table = c.table(optim=wire.ADAGRAD, lr=0.5, epsilon=1e-10)
        assert table.status == 0, table.text
        table = table.number(3)
        want = {}
        empty = c.pull([5, 6], table=table, state=True)
        assert empty.status == 0, empty.text
        assert state_of(empty, 2, 32) == (0, 2, [None, None])
        rng = random.Random(7)
        for seq in range(1, 6):
            keys = sorted(rng.sample(range(3000), 500))
            assert c.push(keys, wire.floats(*[1.0, 2.0, 3.0, 4.0] * 500), table=table, seq=seq, clock=seq - 1).status == 0
            want.update({k: want.get(k, 0) + 1 for k in keys})
        asked = list(range(3000))
        n_pushes, flags_, rows = state_of(c.pull(asked, table=table, state=True), 3000, 32)
        assert (n_pushes, flags_) == (5, 0)
        for key, row in zip(asked, rows):
            assert (row is None) == (key not in want)
            if row:
                assert struct.unpack("<8f", row)[4:] == tuple(want[key] * g * g for g in (1.0, 2.0, 3.0, 4.0))
        plain = c.pull([k for k in asked if k in want], table=table)
        assert plain.body == b"".join(row[:16] for row in rows if row)
        assert c.pull([1], table=table, state=True, codec=wire.BF16).status == wire.STATUS["ECODEC"]
        refused = c.push([1], wire.floats(0, 0, 0, 0), table=table, seq=6, clock=5, state=True)
        assert refused.status == wire.STATUS["EPROTO"]
    node.stop()
