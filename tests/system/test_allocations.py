"""No allocation in the step: twice as many batches ask the allocator as often as half of them do, in the worker and in psd.

A batch of the same rows again and again, so that what grows with the largest batch has grown. What is left is counted too: at the
start more or fewer buffers may be under way at a time, by chance, but never more than there can be.
"""
import collections

import allocations
import pytest
from training import finish, psds, psworker, share, synth  # noqa: F401 (psds is a fixture)

BATCH, N = 128, 200
SLACK = 24  # of N more steps: chance, in how much was under way at a time
TRIES = 3  # a busy machine has more under way for once; what steps ask for comes each time
MODEL = ("--bottom", "32", "--top", "32", "--dim", "8", "--batch", BATCH, "--seed", "7", "--format", "criteo")
# A few pushes are under way at a time, also where no pull waits for them, so that soon there are as many buffers as there can be.
WINDOW = ("--window", 65536)
# What comes as often as time passes, or as the disk is late: psd's reports and its main thread, psworker's look at a long wait, blocks of
# the write-ahead log. And at the end: what all nodes say of workers that were lost, and asking them until all other workers have ended.
BESIDE = {"shard_thread_publish", "node_run", "look_after", "wal_block_new", "count_lost", "find_ends"}
LITTLE = ("--push-codec", "onebit", "--dense-push-codec", "topk", "--dense-push-warmup", 32, "--zstd")
INT8 = ("--push-codec", "int8", "--pull-codec", "bf16", "--dense-pull-codec", "bf16", "--zstd")
PULLS = ("--row-cache", 0)
NO_LOG = ("--data-dir", "")
PACKED = (*NO_LOG, "--compress-replies")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Files of N and of 2 N times the same batch."""
    folder = tmp_path_factory.mktemp("logs")
    one = synth(folder / "one.tsv", BATCH).read_bytes()
    for n in (N, 2 * N):
        (folder / f"{n}.tsv").write_bytes(one * n)
    return folder


def grown(before, after):
    """What was asked for more often, by caller."""
    return collections.Counter({k: n - before[k] for k, n in after.items() if n > before[k]})


def read(path):
    counts = allocations.read(path)
    return collections.Counter({k: counts[k] for k, names in allocations.names(counts).items() if not BESIDE.intersection(names)})


def check(who, before, after):
    more = after.total() - before.total()
    assert before.total() > 100, "nothing was counted"
    if more > SLACK:
        pytest.fail(f"{who}: {N} steps more asked {more} times more for memory:\n{allocations.show(grown(before, after))}", pytrace=False)


def train_counted(folder, data, *flags, rank=0, workers=1):
    many = ("--workers", workers, "--rank", rank) if workers > 1 else ()
    folder.mkdir(exist_ok=True)
    return psworker("train", "--data", data, *MODEL, *WINDOW, *flags, *many, env=allocations.counted(folder / f"worker{rank}"))


@pytest.mark.parametrize("flags", share([(), LITTLE, ("--threads", 2), ("--push-codec", "onebit", "--residual-max", 4096)]))
def test_steps_in_one_process_allocate_nothing(logs, tmp_path, flags):
    counts = []
    for n in (N, 2 * N):
        finish(train_counted(tmp_path / str(n), logs / f"{n}.tsv", "--local", *flags))
        counts.append(read(tmp_path / str(n) / "worker0"))
    check("psworker", *counts)


CASES = {
    "lock step": (("--mode", "bsp"), ()),
    "lock step, rows pulled": (("--mode", "bsp", *PULLS), ()),
    "lock step, few bytes": (("--mode", "bsp", *LITTLE), PACKED),
    "lock step, few bytes, rows pulled, kept": (("--mode", "bsp", *PULLS, *INT8, "--state-dir", "STATE"), PACKED),
    "bounded staleness": (("--mode", "ssp", "--staleness", 4, "--ahead", 2, *PULLS), ()),
    "bounded staleness, dense refresh": (("--mode", "ssp", "--staleness", 4, "--ahead", 1, "--dense-refresh", 3, *PULLS), ()),
    "asynchronous, few bytes": (("--mode", "async", "--ahead", 2, *PULLS, *INT8), PACKED),
    "asynchronous, kept": (("--mode", "async", "--ahead", 1, *PULLS, *LITTLE, "--state-dir", "STATE"), ()),
    "acknowledged when on the disk": (("--mode", "bsp", *PULLS), ("--durability", "fsync")),
}


def run_over_servers(psds, folder, data, flags, psd_flags, workers):
    folder.mkdir()
    node = psds("--shards", 2, *(psd_flags or NO_LOG), dir=folder / "psd", env=allocations.counted(folder / "server"))
    flags = [folder / "state" if f == "STATE" else f for f in flags]
    running = [train_counted(folder, data, "--servers", node.address, *flags, rank=r, workers=workers) for r in range(workers)]
    for w in running:
        finish(w)
    node.stop()
    return [read(folder / f"worker{r}") for r in range(workers)], read(folder / "server")


def try_over_servers(psds, tmp_path, logs, flags, psd_flags, workers):
    tmp_path.mkdir()
    (before, server_before), (after, server_after) = [
        run_over_servers(psds, tmp_path / str(n), logs / f"{n}.tsv", flags, psd_flags, workers) for n in (N, 2 * N)]
    for r in range(workers):
        check(f"worker {r}", before[r], after[r])
    check("psd", server_before, server_after)


def check_over_servers(psds, tmp_path, *case, workers):
    for n in range(TRIES):
        try:
            return try_over_servers(psds, tmp_path / f"try{n}", *case, workers)
        except pytest.fail.Exception:
            if n + 1 == TRIES:
                raise


@pytest.mark.parametrize("name", share(list(CASES)))
def test_steps_over_servers_allocate_nothing(psds, logs, tmp_path, name):
    check_over_servers(psds, tmp_path, logs, *CASES[name], workers=1)


@pytest.mark.parametrize("flags", share([("--mode", "bsp"), ("--mode", "async", "--reuse-clocks", 4, "--ahead", 1)]))
def test_steps_of_two_workers_allocate_nothing(psds, logs, tmp_path, flags):
    check_over_servers(psds, tmp_path, logs, flags, (), workers=2)
