"""kill -9 of servers and workers in the middle of a run, each started again at once with the same flags.

PS_KILLS=20 kills so often; without it a few times. The seed is printed; PS_SEED repeats it."""
import os
import random
import re
import signal
import struct
import time

import pytest
from checkpoint import HEADER_BYTES, TABLE_BYTES, newest, read_head, read_tables
from training import Psd, finish, free_ports, in_time, psds, psworker, synth, wait_for  # noqa: F401 (psds is a fixture)

KILLS = int(os.environ.get("PS_KILLS", "6"))
SEED = int(os.environ.get("PS_SEED", random.SystemRandom().randrange(1 << 32)))
N_WORKERS, N_NODES, N_SHARDS = 2, 2, 2
IN_FIRST_PUSH = 192 + 16  # its number (worker/client/push_journal_format.h)
MODEL = ("--bottom", "32", "--top", "32", "--dim", "8", "--batch", "32", "--seed", "7", "--format", "criteo")


class Cluster:
    """Nodes and workers that can be killed and started again."""

    def __init__(self, psds, tmp_path, data, *flags, n_workers=N_WORKERS):
        self.tmp_path = tmp_path
        tmp_path.mkdir()
        self.said = ""  # by all workers, those that were killed too
        self.addresses = [f"127.0.0.1:{p}" for p in free_ports(N_NODES)]
        self.nodes = [psds(*self.node_flags(i), listen=a) for i, a in enumerate(self.addresses)]
        self.flags = ("--data", data, "--servers", ",".join(self.addresses), "--workers", n_workers, *MODEL, *flags)
        self.workers = [self.worker(r) for r in range(n_workers)]

    def node_flags(self, i):
        return ("--shards", N_SHARDS, "--cluster", ",".join(self.addresses), "--node", i, "--durability", "fsync",
                "--checkpoint-every", "1s", "--lease", "60s")

    def worker(self, rank):
        return psworker("train", *self.flags, "--rank", rank, "--state-dir", self.tmp_path / f"state-{rank}")

    def is_over(self):
        return all(w.poll() == 0 for w in self.workers)

    def kill_worker(self, rank):
        """True: it was still at work."""
        was_over = self.workers[rank].poll() is not None
        if was_over:
            return False
        self.workers[rank].kill()
        self.said += self.workers[rank].communicate()[1]
        self.workers[rank] = self.worker(rank)
        return True

    def kill_node(self, psds, i):
        self.nodes[i].kill()
        self.nodes[i] = psds(*self.node_flags(i), dir=self.nodes[i].dir, listen=self.addresses[i])
        return not self.is_over()

    def finish(self):
        for w in self.workers:
            self.said += finish(w)[1]
        for node in self.nodes:
            node.stop()

    def tables(self):
        """What is there when all is over."""
        self.finish()
        return read_tables([node.data for node in self.nodes])

    def step_counts(self, table):
        """By shard, how many pushes of the table were applied: every push goes to every shard."""
        self.finish()
        counts = []
        for part in (p for node in self.nodes for p in newest(node.data).glob("shard-*.psc")):
            data = part.read_bytes()
            place = [name.endswith(table) for name, *_ in read_head(data)[1]].index(True)
            counts.append(struct.unpack_from("<Q", data, HEADER_BYTES + place * TABLE_BYTES + 312)[0])
        return counts


def clocks_of(nodes):
    """Of the first worker, by shard."""
    return [j["workers"][0]["clock"] if j["workers"] else 0 for node in nodes for s in node.stats()["shards"] for j in s["jobs"]] or [0]


def disturb(cluster, psds, rng, n_kills):
    """Kills so often, or until the run is over; returns how often. First a worker that has left a state, whatever the machine takes to start one."""
    wait_for("some steps", lambda: cluster.is_over() or all(n > 3 for n in clocks_of(cluster.nodes)))
    n_done = cluster.kill_worker(0)
    while n_done < n_kills and not cluster.is_over():
        time.sleep(rng.uniform(0.02, 0.4))  # the moment of the kill is random; nothing is waited for
        if rng.random() < 0.65:
            n_done += cluster.kill_worker(rng.randrange(len(cluster.workers)))
        else:
            n_done += cluster.kill_node(psds, rng.randrange(N_NODES))
    return n_done


@pytest.mark.timeout(240 + 20 * KILLS)
def test_a_run_in_lock_step_ends_in_the_same_bits_however_often_servers_and_workers_are_killed(psds, tmp_path):
    print(f"PS_SEED={SEED}")
    rng = random.Random(SEED)
    data = synth(tmp_path / "log.tsv", 6000 + 4000 * KILLS)
    want = Cluster(psds, tmp_path / "calm", data, "--mode", "bsp").tables()
    assert any(len(rows) > 100 for rows in want.values())

    def killed(n):
        cluster = Cluster(psds, tmp_path / f"killed{n}", data, "--mode", "bsp")
        n_kills = disturb(cluster, psds, rng, KILLS)
        got = cluster.tables()
        return (cluster, got) if n_kills > KILLS // 3 else None

    cluster, got = in_time(killed)
    assert "a process before this one has left its state" in cluster.said
    assert got == want, cluster.said
    assert not any(cluster.tmp_path.glob("state-*/*.pushes")), "what is kept goes at the end"


@pytest.mark.timeout(240 + 20 * KILLS)
@pytest.mark.parametrize("mode", [("async", "--ahead", 2), ("ssp", "--staleness", 3)], ids=["async", "ssp"])
def test_no_push_is_lost_or_applied_twice_however_often_servers_and_workers_are_killed(psds, tmp_path, mode):
    print(f"PS_SEED={SEED}")
    rng = random.Random(SEED ^ 1)
    n_rows = 10000 + 8000 * KILLS
    data = synth(tmp_path / "log.tsv", n_rows)

    def killed(n):
        cluster = Cluster(psds, tmp_path / f"killed{n}", data, "--mode", *mode)
        n_kills = disturb(cluster, psds, rng, KILLS)
        counts = cluster.step_counts("/emb")
        return (cluster, counts) if n_kills > KILLS // 3 else None

    cluster, counts = in_time(killed)
    assert "joins as a new incarnation" not in cluster.said and "declared this worker dead" not in cluster.said
    n_batches = -(-n_rows // 32)
    assert counts == [n_batches] * (N_NODES * N_SHARDS), cluster.said


def test_a_worker_that_takes_a_dead_ones_place_trains_no_step_again(psds, tmp_path):
    """Without --state-dir: a new process under the rank joins where the job stands, and reads on from there."""
    data = synth(tmp_path / "log.tsv", 12000)

    def killed(_):
        node = psds("--shards", 2, "--lease", "1s")
        flags = ("--data", data, "--servers", node.address, *MODEL, "--row-cache", 0)
        first = psworker("train", *flags)
        wait_for("some steps", lambda: any(w["clock"] >= 20 for j in node.stats()["jobs"] for w in j["workers"]))
        first.kill()
        _, said = first.communicate()
        return flags if first.returncode == -signal.SIGKILL and "trained on" not in said else None

    flags = in_time(killed)
    _, said = finish(psworker("train", *flags))
    clock, skipped = map(int, re.search(r"the job is under way: this worker goes on at clock (\d+), behind (\d+)",
                                        said).groups())
    assert clock == skipped >= 20
    assert f"step {375 - clock}" in said or f"trained on {12000 - 32 * clock} samples" in said


def test_a_state_of_other_settings_is_refused_and_a_second_process_too(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 60000)

    def stopped(n):
        node, state = psds("--shards", 2), tmp_path / f"state{n}"
        state.mkdir()
        flags = ("--data", data, "--servers", node.address, *MODEL, "--state-dir", state)
        first = psworker("train", *flags)
        wait_for("some steps", lambda: any(w["clock"] >= 5 for j in node.stats()["jobs"] for w in j["workers"]))
        first.send_signal(signal.SIGSTOP)  # or it might be over before the next asks, and nothing would be left to refuse
        return (first, state, flags) if any(state.glob("*.pushes")) else None

    first, state, flags = in_time(stopped)
    _, said = finish(psworker("train", *flags), status=1)
    assert "another process has" in said
    first.kill()
    first.communicate()
    _, said = finish(psworker("train", *flags, "--batch", 16), status=2)
    assert "--batch" in said and "remove" in said
    for damaged in state.glob("*.pushes"):  # all: which of them counts is the journal's own business
        pushes = bytearray(damaged.read_bytes())
        if len(pushes) > IN_FIRST_PUSH:  # one may have just been made
            pushes[IN_FIRST_PUSH] ^= 1
            damaged.write_bytes(pushes)
    _, said = finish(psworker("train", *flags))
    assert "is damaged" in said and "joins as a new incarnation" in said and "the job is under way" in said
