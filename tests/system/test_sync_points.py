"""Sync points of jobs in bounded staleness: every --cut-every steps all workers wait for the slowest, and the state there is
exact on every shard of every node, without messages between them."""
import json
import random
import signal
import subprocess
import time

import pytest

import wire
from conftest import BIN, eventually
from test_recovery import Cluster
from test_relayout import DIM, Job, args_of, steps_of_rows
from training import finish, psds, psworker, share, synth, wait_for  # noqa: F401 (psds is a fixture)

EBUSY = -16
SYNC_STEPS = 4
N_STEPS = 300  # of the job that is killed: many more than it has done by then


def push(job, shard, rank, clock):
    values = wire.floats(*[1.0] * (DIM * len(job.keys[shard])))
    return job.workers[shard, rank].push(job.keys[shard], values, seq=clock + 1, clock=clock)


def replay(data, at):
    """What psctl makes of a directory; and whether it says that later steps are in it."""
    got = subprocess.run([BIN / "psctl", "replay", data, "--at", at, "--json"], capture_output=True, text=True, timeout=60)
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout), "of later steps" in got.stderr


@pytest.fixture
def at_sync_point(start_psd, tmp_path):
    """Two workers over two shards; rank 0 is as far ahead as it can get when all are dead: behind a cut on shard 1 alone."""
    psd = start_psd(*args_of(tmp_path, "--shards", "2", "--cut-every", str(SYNC_STEPS)))
    job = Job([lambda s=s: psd.connect(s) for s in range(2)], wire.SSP)
    for shard in range(2):
        for clock in range(SYNC_STEPS):
            job.push(shard, 0, clock)
        assert push(job, shard, 0, SYNC_STEPS).status == EBUSY
        for clock in range(SYNC_STEPS - 1 + shard):
            job.push(shard, 1, clock)
    for clock in range(SYNC_STEPS, 2 * SYNC_STEPS):
        job.push(1, 0, clock)
    assert push(job, 0, 0, SYNC_STEPS).status == EBUSY
    assert push(job, 1, 0, 2 * SYNC_STEPS).status == EBUSY
    job.push(0, 1, SYNC_STEPS - 1)
    job.push(0, 0, SYNC_STEPS)
    psd.kill()
    return tmp_path


def test_a_worker_ahead_waits_at_a_sync_point_and_learns_for_whom(start_psd, tmp_path):
    psd = start_psd(*args_of(tmp_path, "--shards", "1", "--cut-every", str(SYNC_STEPS)))
    job = Job([lambda: psd.connect(0)], wire.SSP)
    fast = job.workers[0, 0]
    for clock in range(SYNC_STEPS):
        job.push(0, 0, clock)
    fast.send(wire.pull_frame([1], clock=SYNC_STEPS, request_id=500))
    fast.send(wire.frame("pull", wire.head((1, SYNC_STEPS)), b"", 503))  # asks for nothing but leave to begin
    why = "min clock is 0, needs 4, a sync point: worker 1 (wire.py) is at 0"
    eventually(lambda: why in [w["why"] for w in psd.admin("why")["waits"]])
    fast.send(wire.pull_frame([1], clock=SYNC_STEPS + 1, deadline_ms=400, request_id=501))
    answer = fast.wait(501)
    assert (answer.status, answer.text) == (wire.STATUS["EDEADLINE"], why)
    answer = push(job, 0, 0, SYNC_STEPS)
    assert (answer.status, answer.text) == (EBUSY, "a push of clock 4 waits for the sync point at 4: worker 1 is at 0")
    for clock in range(SYNC_STEPS):
        job.push(0, 1, clock)
    assert fast.wait(500).status == 0 and fast.wait(503).status == 0
    job.push(0, 0, SYNC_STEPS)
    fast.send(wire.pull_frame([1], clock=2 * SYNC_STEPS, request_id=502))
    eventually(lambda: psd.admin("why")["waits"])
    assert job.workers[0, 1].leave().status == 0
    assert fast.wait(502).status == 0
    assert steps_of_rows(psd, 1) == {2.0 * SYNC_STEPS + 1}


def test_a_sync_point_is_exact_in_every_layout_and_other_clocks_are_reported_as_inexact(start_psd, at_sync_point):
    state, is_late = replay(at_sync_point / "data", f"job:{SYNC_STEPS}")
    assert not is_late and [t["pushes"] for t in state["tables"]] == [2 * SYNC_STEPS]
    assert replay(at_sync_point / "data", f"job:{SYNC_STEPS - 1}")[1]
    for more in (("--restore", str(at_sync_point / "data"), "--shards", "3"), args_of(at_sync_point, "--shards", "2")):
        again = start_psd(*more, "--at", f"job:{SYNC_STEPS}")
        assert not any("of later steps" in line for line in again.lines), again.log()
        assert steps_of_rows(again, again.n_shards) == {2.0 * SYNC_STEPS}
        again.stop()


def test_workers_go_on_from_a_sync_point_and_nothing_is_doubled(start_psd, at_sync_point):
    psd = start_psd(*args_of(at_sync_point, "--shards", "2", "--cut-every", str(SYNC_STEPS)), "--at", f"job:{SYNC_STEPS}")
    clients = {}
    for shard in range(2):
        for rank in range(2):
            client = clients[shard, rank] = psd.connect(shard)
            joined = client.join(n_workers=2, rank=rank, incarnation=9, mode=wire.SSP, bound=9)
            assert joined.status == 0 and joined.number(4) == SYNC_STEPS, joined.text
            assert client.table(name="t", dim=DIM, optim=wire.SGD, lr=1.0).status == 0
    keys = [[k for k in range(1, 61) if wire.shard_of(k, 2) == shard] for shard in range(2)]
    for clock in range(SYNC_STEPS, 2 * SYNC_STEPS):
        for shard in range(2):
            for rank in range(2):
                values = wire.floats(*[1.0] * (DIM * len(keys[shard])))
                answer = clients[shard, rank].push(keys[shard], values, seq=clock - SYNC_STEPS + 1, clock=clock)
                assert answer.status == 0, answer.text
    assert steps_of_rows(psd, 2) == {4.0 * SYNC_STEPS}


class Job3(Cluster):
    """Three psworkers of bounded staleness over two nodes, with a sync point every ten steps."""

    def node_flags(self, i):
        """New processes may take the ranks of the killed ones after half a lease, and have to before it is over."""
        flags = super().node_flags(i)
        return (*flags[:flags.index("--checkpoint-every")], "--lease", "14s", "--cut-every", 10)


def log_is_written(cluster):
    """All that has happened is on the disk."""
    logs = [shard["log"] for node in cluster.nodes for shard in node.stats()["shards"]]
    return all(log["durable"] == log["records"] for log in logs)


def min_clock(cluster):
    """Of all nodes."""
    jobs = [j for node in cluster.nodes for j in node.stats()["jobs"]]
    return min((w["clock"] for j in jobs for w in j["workers"]), default=0) if len(jobs) == len(cluster.nodes) else 0


@pytest.mark.parametrize("more", share([(), ("--ahead", 2), ("--reuse-clocks", 6, "--dense-refresh", 5), ("--reuse-clocks", 6, "--ahead", 2)]),
                         ids=lambda more: " ".join(map(str, more)) or "plain")
def test_a_job_that_is_killed_can_be_restored_at_each_sync_point_and_goes_on_from_one(psds, tmp_path, more):
    rng = random.Random(3)
    data = synth(tmp_path / "log.tsv", 3 * 32 * N_STEPS)
    cluster = Job3(psds, tmp_path / "job", data, "--mode", "ssp", "--staleness", 8, "--job", "j", *more, n_workers=3)
    slow = cluster.workers[0]
    slow.send_signal(signal.SIGSTOP)
    while min_clock(cluster) < 50:
        time.sleep(rng.uniform(0.01, 0.1))  # a straggler
        next_one = rng.choice([w for w in cluster.workers if w is not slow])
        next_one.send_signal(signal.SIGSTOP)  # one is stopped at any time: the job cannot run away where this process is kept waiting
        slow.send_signal(signal.SIGCONT)
        slow = next_one
        assert all(w.poll() is None for w in cluster.workers), "the run was over before it was killed"
    for w in cluster.workers:
        w.kill()
        assert "waits for the sync point" not in w.communicate()[1]  # psworker asks before it pushes
    assert min_clock(cluster) < N_STEPS, "the run was over before it was killed"
    wait_for("the log", lambda: log_is_written(cluster))  # what the loop above has seen may be ahead of it
    for node in cluster.nodes:
        node.kill()
    for clock in (10, 20, 30, 40, 50):
        for node in cluster.nodes:
            state, is_late = replay(node.data, f"j:{clock}")
            counts = {t["name"].split("/")[-1]: t["pushes"] for t in state["tables"]}
            assert not is_late and counts["emb"] == 3 * clock, (clock, counts)
    cluster.nodes = [psds(*cluster.node_flags(i), "--at", "j:30", dir=node.dir, listen=cluster.addresses[i])
                     for i, node in enumerate(cluster.nodes)]
    cluster.workers = [psworker("train", *cluster.flags, "--rank", r) for r in range(3)]
    assert cluster.step_counts("/emb") == [3 * N_STEPS] * 4
    assert "behind 30" in cluster.said, cluster.said
