"""A step's stages at work at the same time: within the bound, exact in lock step, and nothing lost at a stop."""
import signal

import pytest
from test_oracle import SMALL, digest, local
from training import finish, psds, psworker, result, synth, train, wait_for  # noqa: F401

STAGES = ("read", "fetch", "servers", "compute", "deliver", "network")


def jobs_of(node):
    return [j for s in node.stats()["shards"] for j in s["jobs"]]


def clocks_of(node):
    return {w["clock"] for j in jobs_of(node) for w in j["workers"]}


@pytest.mark.parametrize("bound, ahead, lead", [(3, 2, 2), (1, 4, 1), (0, 4, 0), (4, 0, 0)])
def test_pulls_run_ahead_as_far_as_bound_and_setting_allow(psds, tmp_path, bound, ahead, lead):
    data = synth(tmp_path / "log.tsv", 12000)
    node = psds("--shards", 2)
    r = train("--data", data, "--servers", node.address, "--mode", "ssp", "--staleness", bound, "--ahead", ahead, "--row-cache", 0, *SMALL)
    assert r["staleness_max"] <= lead
    assert r["staleness_max"] == lead or lead > 1, "a pull of the next batch left before the push of this one"
    assert r["samples"] == 12000
    wait_for("all steps on the page", lambda: clocks_of(node) == {r["step"]})
    assert sum(j["staleness_violations"] for j in jobs_of(node)) == 0


def test_the_bound_holds_while_one_of_two_workers_is_slow(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 24000)
    node = psds("--shards", 2)
    flags = ("--data", data, "--servers", node.address, "--mode", "ssp", "--staleness", 2, "--ahead", 2, "--workers", 2,
             *SMALL, "--json", "-")
    workers = [psworker("train", *flags, "--rank", r) for r in range(2)]
    for _ in range(20):
        if workers[1].poll() is None:
            workers[1].send_signal(signal.SIGSTOP)
            seen = max(clocks_of(node), default=0)
            wait_for("the other's wait at its bound, or its end", lambda: workers[0].poll() is not None or any(
                w for j in jobs_of(node) for w in j["workers"] if w["rank"] == 0 and w["clock"] >= seen))
            workers[1].send_signal(signal.SIGCONT)
    results = [result(finish(w)[0]) for w in workers]
    assert max(r["staleness_max"] for r in results) <= 2
    assert sum(j["staleness_violations"] for j in jobs_of(node)) == 0
    assert sum(r["samples"] for r in results) == 24000


@pytest.mark.parametrize("mode", [("--mode", "bsp"), ("--mode", "ssp", "--staleness", "0"), ("--mode", "async", "--dense-mode", "bsp")])
def test_lock_step_is_exact_however_far_ahead_is_allowed(psds, tmp_path, mode):
    data = synth(tmp_path / "log.tsv", 4000)
    node = psds("--shards", 3)
    train("--data", data, "--servers", node.address, "--ahead", 9, *mode, *SMALL)
    node.stop()
    want = local(tmp_path / "local", data)
    assert digest([node.data]) == want


def test_a_signal_delivers_what_was_computed(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 20000)
    node = psds("--shards", 2)
    w = psworker("train", "--data", data, "--servers", node.address, "--mode", "async", "--ahead", 3, "--row-cache", 0, *SMALL, "--json", "-",
                 "--epochs", 10000)
    wait_for("some steps", lambda: max(clocks_of(node), default=0) > 20)
    w.send_signal(signal.SIGTERM)
    r = result(finish(w)[0])
    assert r["stopped_early"] and r["samples"] > 0
    wait_for("its steps on the page", lambda: clocks_of(node) == {r["step"]})


def test_a_worker_whose_pull_is_parked_stops_at_a_signal(psds, tmp_path):
    """The other worker has not come: the pull behind the bound waits for it."""
    data = synth(tmp_path / "log.tsv", 20000)
    node = psds("--shards", 2)
    w = psworker("train", "--data", data, "--servers", node.address, "--mode", "ssp", "--staleness", 2, "--ahead", 2,
                 "--workers", 2, *SMALL, "--json", "-")
    wait_for("its bound", lambda: max(clocks_of(node), default=0) == 3)
    w.send_signal(signal.SIGTERM)
    r = result(finish(w, 50)[0])  # --join-timeout is longer
    assert r["step"] == 3
    wait_for("its steps on the page", lambda: clocks_of(node) == {0, 3})


@pytest.mark.parametrize("where", ["--local", "--servers"])
def test_the_bottleneck_is_named(psds, tmp_path, where):
    data = synth(tmp_path / "log.tsv", 4000)
    place = (where,) if where == "--local" else (where, psds("--shards", 1).address)
    out, err = finish(psworker("train", "--data", data, *place, *SMALL, "--json", "-"))
    r = result(out)
    shares = {name: r[f"busy_{name}"] for name in STAGES}
    assert all(0 <= s <= 1 for s in shares.values()) and shares["compute"] > 0 and shares["read"] > 0
    assert (shares["network"] > 0) == (where == "--servers")
    assert shares[r["bottleneck"]] == max(shares.values())
    assert err.count("is the bottleneck") == 1
