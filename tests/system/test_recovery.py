"""kill -9 of servers and workers in the middle of a run, each started again at once with the same flags.

PS_KILLS=20 kills so often; without it a few times. The seed is printed; PS_SEED repeats it."""
import os
import random
import time

import pytest
from checkpoint import read_tables
from training import Psd, finish, free_ports, psds, psworker, synth  # noqa: F401 (psds is a fixture)

KILLS = int(os.environ.get("PS_KILLS", "6"))
SEED = int(os.environ.get("PS_SEED", random.SystemRandom().randrange(1 << 32)))
N_WORKERS, N_NODES, N_SHARDS = 2, 2, 2
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

    def tables(self):
        """What is there when all is over."""
        for w in self.workers:
            self.said += finish(w)[1]
        for node in self.nodes:
            node.stop()
        return read_tables([node.data for node in self.nodes])


def disturb(cluster, psds, rng, n_kills):
    """Kills so often, or until the run is over; returns how often."""
    n_done = 0
    while n_done < n_kills and not cluster.is_over():
        time.sleep(rng.uniform(0.02, 0.5))  # the moment of the kill is random; nothing is waited for
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
    cluster = Cluster(psds, tmp_path / "killed", data, "--mode", "bsp")
    n_kills = disturb(cluster, psds, rng, KILLS)
    got = cluster.tables()
    assert n_kills > KILLS // 2, "the run was over before it was disturbed"
    assert "a process before this one has left its state" in cluster.said
    assert got == want, cluster.said
    assert not any((tmp_path / "killed").glob("state-*/*.pushes")), "what is kept goes at the end"
