"""Lock step is the oracle: the same bits whatever the shards, the nodes, the arrival order, and as inside one process."""
import json
import os
import random
import signal
import subprocess
import threading
import time

import pytest
from checkpoint import read_tables
from training import BIN, finish, free_ports, in_time, psds, psworker, result, sanitized_share, share, synth, train, wait_for  # noqa: F401 (psds is a fixture)

SMALL = ("--bottom", "32", "--top", "32", "--dim", "8", "--batch", "64", "--seed", "7", "--format", "criteo")


def digest(dirs):
    tables = read_tables(dirs)
    assert any(name.endswith("/emb") and len(rows) > 100 for name, rows in tables.items())
    return tables


def local(tmp_path, data, *flags):
    tmp_path.mkdir(exist_ok=True)
    train("--data", data, "--local", "--save", tmp_path / "local", *SMALL, *flags)
    return digest([tmp_path / "local"])


def remote(psds, data, n_shards, n_nodes=1, n_workers=1, flags=(), disturb=None):
    """Trains in lock step on a fresh cluster and returns what its checkpoints hold."""
    ports = free_ports(n_nodes)
    addresses = [f"127.0.0.1:{p}" for p in ports]
    nodes = [psds("--shards", n_shards, "--cluster", ",".join(addresses), "--node", i, listen=a)
             for i, a in enumerate(addresses)]
    workers = [psworker("train", "--data", data, "--servers", addresses[-1], "--mode", "bsp", "--workers", n_workers,
                        "--rank", r, *SMALL, *flags) for r in range(n_workers)]
    if disturb:
        disturb([w.pid for w in workers] + [n.proc.pid for n in nodes])
    for w in workers:
        finish(w)
    for n in nodes:
        n.stop()
    return digest([n.data for n in nodes])


def test_one_worker_ends_in_the_same_bits_on_any_cluster_and_in_one_process(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 4000)
    for optimizer in sanitized_share(("adagrad", "adam")):
        flags = ("--optimizer", optimizer, "--lr", "0.01", "--job", optimizer)
        want = local(tmp_path / optimizer, data, *flags)
        assert remote(psds, data, 1, flags=flags) == want
        assert remote(psds, data, 4, flags=flags) == want
        assert remote(psds, data, 2, n_nodes=2, flags=flags) == want


def test_layers_that_an_optimizer_takes_whole_end_in_the_same_bits_on_any_cluster(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 640)
    for optimizer in sanitized_share(("lamb", "lars")):
        flags = ("--dense-optimizer", optimizer, "--dense-lr", "0.01", "--top", "400,300", "--job", optimizer)
        want = local(tmp_path / optimizer, data, *flags)
        assert list(want[f"{optimizer}/top.1.W"]) == [0]  # one block of 120,000 floats, and longer in a checkpoint than a chunk of rows
        assert remote(psds, data, 1, flags=flags) == want
        assert remote(psds, data, 3, flags=flags) == want
        assert remote(psds, data, 2, n_nodes=2, flags=flags) == want
        together = remote(psds, data, 1, n_workers=2, flags=flags)
        assert remote(psds, data, 4, n_workers=2, flags=flags) == together != want


def test_a_layer_that_is_taken_whole_outlives_a_crash_and_is_read_without_its_optimizer(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 640)
    flags = (*SMALL, "--top", "400,300", "--job", "whole")
    optimizer = ("--dense-optimizer", "lamb", "--dense-lr", "0.01")
    want = train("--data", data, "--valid", data, "--local", *flags, *optimizer)
    for checkpoint in (False, True):
        node = psds("--shards", 2, "--durability", "fsync")
        got = train("--data", data, "--valid", data, "--servers", node.address, "--mode", "bsp", *flags, *optimizer)
        assert (got["auc"], got["logloss"]) == (want["auc"], want["logloss"])
        if checkpoint:
            finish(subprocess.Popen([BIN / "psctl", "--server", node.address, "checkpoint"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        node.kill()
        node = psds("--shards", 2, "--durability", "fsync", dir=node.dir)
        read = result(finish(psworker("eval", "--data", data, "--servers", node.address, *flags, "--json", "-"))[0])
        assert (read["auc"], read["logloss"]) == (want["auc"], want["logloss"])
    refused = finish(psworker("train", "--data", data, "--local", *flags, *optimizer, "--dense-push-codec", "topk"), status=2)[1]
    assert "--dense-optimizer lamb and lars take each layer whole" in refused


def test_a_job_of_whole_layers_goes_on_without_naming_its_optimizer(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 640)
    optimizer = ("--dense-optimizer", "lamb", "--dense-lr", "0.01")
    tables = []
    for named in (optimizer, ()):
        node = psds("--shards", 2)
        flags = ("--data", data, *SMALL, "--servers", node.address, "--mode", "bsp", "--top", "400,300")
        train(*flags, *optimizer)
        train(*flags, *named)
        node.stop()
        tables.append(digest([node.data]))
    assert tables[0] == tables[1]
    assert [len(rows) for name, rows in tables[0].items() if name.endswith("/top.1.W")] == [1]


def test_a_job_of_blocks_does_not_go_on_with_an_optimizer_of_whole_layers(psds, tmp_path):
    """The refused run changes nothing: what comes after it makes the tables that it makes without."""
    data = synth(tmp_path / "log.tsv", 640)
    tables = []
    for tries in (True, False):
        node = psds("--shards", 2)
        flags = ("--data", data, *SMALL, "--servers", node.address, "--mode", "bsp", "--top", "400,300", "--job", "blocks")
        train(*flags)
        if tries:
            refused = finish(psworker("train", *flags, "--dense-optimizer", "lamb"), status=2)[1]
            assert 'table blocks/bot.0.W: optimizer is adagrad here, lamb was asked for: what an earlier run of job "blocks" has made it with' in refused
        train(*flags)
        node.stop()
        tables.append(digest([node.data]))
    assert tables[0] == tables[1]
    assert len(tables[0]["blocks/top.1.W"]) == 118  # of 1,024 floats


def test_a_layer_that_is_too_long_is_refused_before_any_table_is_made(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 64)
    node = psds("--shards", 1)
    flags = ("--data", data, *SMALL, "--servers", node.address, "--job", "long", "--top", "2100,2000")
    refused = finish(psworker("train", *flags, "--dense-optimizer", "lamb"), status=2)[1]
    assert "--dense-optimizer lamb takes each layer whole: top.1.W has 4200000 floats, 4194304 at most" in refused
    # Those of a later job are shown: so would be any that were made before.
    train("--data", data, *SMALL, "--servers", node.address, "--job", "short")

    def shown():
        return subprocess.run([BIN / "psctl", "--server", node.address, "tables"], capture_output=True, text=True).stdout

    wait_for("the later job's table to be shown", lambda: "short/emb" in shown())
    assert "long" not in shown()


def test_a_row_that_is_a_whole_layer_is_shown_by_its_first_floats(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 64)
    node = psds("--shards", 2)
    train("--data", data, *SMALL, "--servers", node.address, "--job", "long", "--top", "400,300", "--dense-optimizer", "lamb")
    shown = subprocess.run([BIN / "psctl", "row", "long/top.1.W", "0", "-o", "json", "--server", node.address], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    row = json.loads(shown.stdout)
    assert (row["n_weights"], row["n_state"], len(row["weights"]), len(row["state"])) == (120000, 240000, 64, 64)


def test_lossy_codecs_end_in_the_same_bits_as_in_one_process(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 2000)
    for codec in sanitized_share(("bf16", "fp16", "int8", "onebit", "topk")):
        flags = ("--push-codec", codec, "--zstd", "--job", codec, "--optimizer", "sgd", "--lr", "0.05")
        assert remote(psds, data, 3, flags=flags) == local(tmp_path / codec, data, *flags)


class Slices(threading.Thread):
    """Stops processes for a few milliseconds at random until one of them has ended: another order of arrival with every seed."""

    def __init__(self, seed, pids):
        super().__init__(daemon=True)
        self.rng, self.pids, self.n = random.Random(seed), pids, 0
        self.start()

    def run(self):
        while True:
            pid = self.rng.choice(self.pids)
            try:
                with open(f"/proc/{pid}/stat") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self.rng.uniform(0.001, 0.02))  # the length of the disturbance, not a wait for an event
                os.kill(pid, signal.SIGCONT)
                self.n += 1
            except (ProcessLookupError, FileNotFoundError):
                return


@pytest.mark.parametrize("n_shards, n_nodes", share([(1, 1), (4, 1), (2, 2), (3, 1)]))
def test_two_workers_end_in_the_same_bits_in_twenty_orders_of_arrival(psds, tmp_path, n_shards, n_nodes):
    """Five in each of the layouts; two where sanitizers, which are ten times slower, look at threads and memory."""
    data = synth(tmp_path / "log.tsv", 6000)
    flags = ("--batch", "32")
    want = remote(psds, data, 1, n_workers=2, flags=flags)
    for seed in [random.randrange(1 << 30) for _ in range(2 if BIN.parent.name in ("asan", "tsan") else 5)]:

        def disturbed(_):
            slices = []
            got = remote(psds, data, n_shards, n_nodes=n_nodes, n_workers=2, flags=flags,
                         disturb=lambda pids: slices.append(Slices(seed, pids)))
            assert got == want, f"seed {seed}, {n_nodes} nodes x {n_shards} shards"
            return True if slices[0].n >= 5 else None

        in_time(disturbed)


def test_two_workers_of_half_a_batch_train_like_one_of_the_whole(psds, tmp_path):
    """Not bit for bit (the sums have another order), but to rounding."""
    import struct
    data = synth(tmp_path / "log.tsv", 2560)
    two = remote(psds, data, 2, n_workers=2, flags=("--batch", "32", "--optimizer", "sgd", "--lr", "0.1"))
    one = local(tmp_path, data, "--batch", "64", "--optimizer", "sgd", "--lr", "0.1")
    assert two.keys() == one.keys()
    for table, rows in one.items():
        assert rows.keys() == two[table].keys()
        for key, floats in rows.items():
            n = len(floats) // 4
            a, b = struct.unpack(f"<{n}f", floats), struct.unpack(f"<{n}f", two[table][key])
            assert max(abs(x - y) for x, y in zip(a, b)) < 2e-5, (table, key)
