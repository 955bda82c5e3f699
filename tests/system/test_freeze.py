"""A worker that is stopped for longer than its lease: the others go on, it is fenced when it comes back, the pages say so."""
import pathlib
import re
import signal
import time

import pytest
from training import finish, psds, psworker, result, synth, wait_for  # noqa: F401


def job_of(node):
    jobs = [j for s in node.stats()["shards"] for j in s["jobs"]]
    return jobs


def workers_of(node, state):
    return [w for j in job_of(node) for w in j["workers"] if w["state"] == state]


@pytest.mark.parametrize("mode", ["ssp", "bsp"])
def test_a_frozen_worker_holds_nobody_up_for_longer_than_its_lease(psds, tmp_path, mode):
    data = synth(tmp_path / "log.tsv", 10000)
    node = psds("--shards", 2, "--lease", "1500ms")
    flags = ("--data", data, "--servers", node.address, "--format", "criteo", "--mode", mode, "--staleness", 4, "--workers", 2,
             "--bottom", "64", "--top", "64", "--dim", "8", "--batch", "64", "--epochs", "10000", "--json", "-")
    workers = [psworker("train", *flags, "--rank", r) for r in range(2)]
    wait_for("both workers' progress", lambda: len([w for w in workers_of(node, "live") if w["clock"] > 10]) >= 4)

    workers[1].send_signal(signal.SIGSTOP)
    frozen_at = max((w["clock"] for w in workers_of(node, "live") if w["rank"] == 1), default=0)
    wait_for("the lease's end", lambda: any(w["rank"] == 1 for w in workers_of(node, "dead")))
    advance = lambda rank, clock: wait_for(f"progress of worker {rank}", lambda: any(
        w["rank"] == rank and w["clock"] > clock for w in workers_of(node, "live")))
    advance(0, frozen_at + 20)
    workers[1].send_signal(signal.SIGCONT)
    advance(1, frozen_at + 20)

    for w in workers:
        w.send_signal(signal.SIGTERM)
    outs = [finish(w) for w in workers]
    assert result(outs[1][0])["rejoins"] >= 1
    assert "declared dead" in outs[1][1]
    assert wait_for("it on the page", lambda: all(sum(j[n] for j in job_of(node)) for n in ("deaths", "fenced")))
    assert sum(j["staleness_violations"] for j in job_of(node)) == 0


def naps_of(thread):
    """How often it has gone to sleep by itself (proc(5)); its folder in /proc."""
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.M)[1])


def n_naps(pid):
    return sum(naps_of(thread) for thread in pathlib.Path(f"/proc/{pid}/task").iterdir())


def trainer_waits(pid):
    """The thread that trains sleeps, and has not woken in a while: it waits for an answer. The others wake for their timers."""
    trainer = pathlib.Path(f"/proc/{pid}/task/{pid}")
    before = naps_of(trainer)
    time.sleep(0.1)  # longer than a step
    return (trainer / "stat").read_text().rsplit(")", 1)[1].split()[0] == "S" and naps_of(trainer) == before


def test_a_machine_that_stood_still_has_given_nobody_up(psds, tmp_path):
    """A push was under way, and the clock says that its answer is later than --give-up: but nobody has looked for it."""
    data = synth(tmp_path / "log.tsv", 1000)
    node = psds("--shards", 2)
    w = psworker("train", "--data", data, "--servers", node.address, "--format", "criteo", "--bottom", "8", "--top", "8", "--dim", "8",
                 "--batch", "64", "--epochs", "10000", "--window", "65536", "--give-up", "6s", "--json", "-")  # so that it waits soon
    clock = lambda: max((w["clock"] for w in workers_of(node, "live")), default=0)
    wait_for("its first steps", lambda: clock() > 10)
    node.proc.send_signal(signal.SIGSTOP)
    wait_for("a wait for an answer", lambda: trainer_waits(w.pid))
    w.send_signal(signal.SIGSTOP)
    time.sleep(7)  # the wait is the case: longer than --give-up
    n_before = n_naps(w.pid)
    w.send_signal(signal.SIGCONT)
    wait_for("looks at its clock before there is an answer", lambda: n_naps(w.pid) > n_before + 20)
    node.proc.send_signal(signal.SIGCONT)
    before = clock()
    wait_for("many more steps", lambda: clock() > before + 100)
    w.send_signal(signal.SIGTERM)
    assert result(finish(w)[0])["stopped_early"]


def test_a_worker_frozen_at_its_end_says_goodbye_as_a_new_incarnation(psds, tmp_path):
    """The lease may end at any step, also between the last push and the goodbye: the result line comes all the same."""
    data = synth(tmp_path / "log.tsv", 640)
    for i in range(12):
        node = psds("--shards", 2, "--lease", "400ms")
        w = psworker("train", "--data", data, "--servers", node.address, "--format", "criteo", "--bottom", "8", "--top", "8", "--dim",
                     "8", "--batch", "64", "--json", "-")
        wait_for("its first step", lambda: workers_of(node, "live") or workers_of(node, "left"))
        w.send_signal(signal.SIGSTOP)
        wait_for("its end", lambda: not workers_of(node, "live"))
        w.send_signal(signal.SIGCONT)
        assert result(finish(w)[0])["samples"] == 640
        node.kill()
