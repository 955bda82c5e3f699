"""Dense tables that are pushed and pulled every so many steps: local steps with slow momentum, and gradients that add up."""
import struct

import pytest
from checkpoint import read_tables
from training import finish, psds, psworker, result, synth  # noqa: F401

SMALL = ("--format", "criteo", "--bottom", "32", "--top", "32", "--dim", "8", "--batch", "32", "--seed", "7", "--train-rows", "3000")


def trained(psds, data, n_workers, *flags):
    """What a fresh node's checkpoint holds then, and the workers' results."""
    node = psds("--shards", 2)
    workers = [psworker("train", "--data", data, "--servers", node.address, *SMALL, "--workers", n_workers, "--rank", rank, "--json", "-", *flags)
               for rank in range(n_workers)]
    lines = [result(finish(w)[0]) for w in workers]
    node.stop()
    return read_tables([node.data]), lines


def n_bytes(lines):
    return sum(line["bytes_in"] + line["bytes_out"] for line in lines)


def weights(tables, name, dim):
    rows = [tables[f"job/{name}"][key] for key in sorted(tables[f"job/{name}"])]
    return [w for row in rows for w in struct.unpack_from(f"<{dim}f", row)]


def farthest(a, b, name="top.0.W", dim=1024):
    return max(abs(x - y) for x, y in zip(weights(a, name, dim), weights(b, name, dim), strict=True))


def test_one_worker_learns_what_it_learns_without(psds, tmp_path):
    """Also if it never comes to the end of a period: its last steps are pushed when it leaves."""
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)
    plain, lines = trained(psds, data, 1)
    for flags in (("--local-steps", 4), ("--local-steps", 5, "--rotate"), ("--local-steps", 100000)):
        got, local = trained(psds, data, 1, *flags)
        assert farthest(got, plain) < 1e-4
        assert abs(local[0]["logloss"] - lines[0]["logloss"]) < 1e-4
    summed, _ = trained(psds, data, 1, "--period", "top.*=4")
    assert 1e-4 < farthest(summed, plain)


def test_the_last_steps_of_a_worker_that_leaves_first_weigh_as_those_of_the_others(psds, tmp_path):
    """Only rank 0 learns. It leaves at a clock of its own, or together with rank 1: then its steps are half of a mean."""
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)

    def moved(*steps):
        node = psds("--shards", 2)
        run = ("train", "--data", data, "--servers", node.address, *SMALL, "--json", "-", "--workers", 2, "--local-steps", 1000)
        workers = [psworker(*run, "--rank", rank, "--dense-lr", lr, "--steps-max", n, "--allow-lost-workers")
                   for rank, (n, lr) in enumerate(zip(steps, ("0.01", "1e-12")))]
        for w in workers:
            finish(w)
        node.stop()
        return read_tables([node.data])

    start, alone, together = moved(1, 1), moved(10, 20), moved(10, 10)
    assert farthest(start, together) > 0.01 and farthest(start, alone) > 0.01


def test_workers_in_lock_step_end_in_the_same_bits_each_time_with_fewer_bytes(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)
    plain, lines = trained(psds, data, 3)
    for flags in (("--local-steps", 8, "--slow-momentum", "0.5", "--rotate"), ("--period", "*=8", "--row-period", "emb=4", "--rotate")):
        want, got = trained(psds, data, 3, *flags)
        assert trained(psds, data, 3, *flags)[0] == want
        assert n_bytes(got) < 0.4 * n_bytes(lines)
        assert abs(got[0]["logloss"] - lines[0]["logloss"]) < 0.03


def test_rows_with_a_period_cost_fewer_bytes(psds, tmp_path):
    """What is left at the end is pushed, too: with a period longer than the run, all of it."""
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)
    start, lines = trained(psds, data, 1, "--steps-max", 1, "--row-period", "wide=4")
    want = trained(psds, data, 1, "--steps-max", 1)[0]
    assert start["job/emb"] == want["job/emb"]
    got, long = trained(psds, data, 1, "--row-period", "emb=100000")
    moved = [a for a, b in zip(weights(got, "emb", 8), weights(want, "emb", 8)) if a != b]
    assert len(moved) > 100 and long[0]["rows_pulled"] < 3000
    plain = trained(psds, data, 2, "--mode", "async")[1]
    few = trained(psds, data, 2, "--mode", "async", "--row-period", "emb=8")[1]
    assert sum(line["rows_pulled"] for line in few) < 0.5 * sum(line["rows_pulled"] for line in plain)
    assert abs(few[0]["logloss"] - plain[0]["logloss"]) < 0.05


def test_workers_that_are_ahead_learn_and_codecs_go_with_it(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)
    ahead = ("--mode", "ssp", "--staleness", "4", "--ahead", "2")
    plain = trained(psds, data, 2, *ahead)[1]
    lines = trained(psds, data, 2, *ahead, "--local-steps", 4, "--push-codec", "onebit", "--pull-deltas")[1]
    assert n_bytes(lines) < 0.4 * n_bytes(plain)
    assert abs(lines[0]["logloss"] - plain[0]["logloss"]) < 0.05


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_a_frozen_second_moment_stays_and_is_the_next_runs(psds, tmp_path, optimizer):
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)
    flags = ("--local-steps", 1, "--dense-optimizer", optimizer, "--freeze-variance-at", 20, "--dense-push-codec", "onebit", "--dense-push-warmup", 20)
    want, lines = trained(psds, data, 2, *flags)
    plain = trained(psds, data, 2, "--dense-optimizer", optimizer)[1]
    assert all(v > 0 for v in weights(want, "variance.top.1.b", 1)[:1])
    assert abs(lines[0]["logloss"] - plain[0]["logloss"]) < 0.03
    assert trained(psds, data, 2, *flags)[0] == want
    node = psds("--shards", 2)
    for _ in range(2):
        workers = [psworker("train", "--data", data, "--servers", node.address, *SMALL, "--workers", 2, "--rank", rank, *flags) for rank in (0, 1)]
        for worker in workers:
            finish(worker)
    node.stop()
    twice = read_tables([node.data])
    assert {n: t for n, t in twice.items() if "/variance." in n} == {n: t for n, t in want.items() if "/variance." in n}


def test_the_servers_tables_outlive_a_job_of_local_steps(psds, tmp_path):
    """A second run goes on with them; one without local steps is told that they are other tables."""
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)
    node = psds("--shards", 2)
    run = ("train", "--data", data, "--servers", node.address, *SMALL, "--json", "-")
    for _ in range(2):
        out, err = finish(psworker(*run, "--local-steps", 4, "--period", "bot.*=2,top.9.W=3"))
    assert "training goes on from them" in err and "--period top.9.W=3 has no effect" in err
    _, err = finish(psworker(*run), status=2)
    assert "optimizer is momentum here" in err


def test_what_does_not_go_together_is_refused(tmp_path):
    def refused(*flags):
        return finish(psworker("train", "--data", "/dev/null", "--format", "criteo", *flags), status=2)[1]

    local = ("--local-steps", 4)
    assert "with --local there are none" in refused(*local, "--local")
    assert "--state-dir goes without" in refused(*local, "--state-dir", tmp_path)
    assert "--dense-refresh goes without" in refused(*local, "--dense-refresh", 2, "--mode", "async")
    assert "--delay-compensation goes without" in refused(*local, "--delay-compensation", 2, "--mode", "async")
    assert "--backup-workers goes without" in refused(*local, "--backup-workers", 1, "--workers", 2)
    assert "codecs of dense tables other than auto" in refused("--period", "*=2", "--push-codec", "auto")
    assert "--dense-optimizer ftrl goes without" in refused(*local, "--dense-optimizer", "ftrl")
    assert "--decay plateau goes without" in refused(*local, "--decay", "plateau")
    assert "go with --local-steps" in refused("--slow-momentum", "0.5")
    assert "--freeze-variance-at goes with" in refused(*local, "--freeze-variance-at", 5)
    assert "adam or lamb" in refused(*local, "--freeze-variance-at", 5, "--dense-optimizer", "lars")
    assert "and lock step" in refused(*local, "--freeze-variance-at", 5, "--dense-optimizer", "adam", "--mode", "async")
    assert "--rotate goes with" in refused("--rotate") and "--rotate goes with" in refused("--rotate", "--row-period", "emb=2")
    rows = ("--row-period", "emb*=4")
    assert "with --local there are none" in refused(*rows, "--local")
    assert "--state-dir goes without" in refused(*rows, "--state-dir", tmp_path)
    assert "--delay-compensation goes without --row-period" in refused(*rows, "--delay-compensation", 2, "--mode", "async")
    assert "codecs of rows other than auto" in refused(*rows, "--push-codec", "auto", "--dense-push-codec", "fp32")
    assert "one mode of all tables" in refused(*rows, "--dense-mode", "async")
    assert "--reuse-clocks goes without --row-period" in refused(*rows, "--mode", "async", "--workers", 2, "--reuse-clocks", 3)
    lr = ("--model", "lr", "--merge-weight", "adaptive")
    assert "goes with --model lr" in refused(*local, "--merge-weight", "adaptive")
    assert "goes with --model lr" in refused(*lr) and "goes with --model lr" in refused(*lr, *local, "--mode", "async")
    assert "goes without --slow-momentum" in refused(*lr, *local, "--slow-momentum", "0.5")
    for item in ("top", "top=", "=3", "top=0", "top=x", "top=100001"):
        assert "--period: " in refused("--period", item) and "is not the name of a table" in refused("--row-period", item)


def test_an_adaptive_weight_goes_farther_than_the_mean(psds, tmp_path):
    """Workers find different things in their rows, so that the mean of their steps is short: how far, the servers' table of squares says."""
    data = synth(tmp_path / "log.tsv", 3500, cardinality=50)

    def merged(*flags):
        node = psds("--shards", 2)
        run = ("train", "--data", data, "--servers", node.address, "--format", "criteo", "--model", "lr", "--batch", "32", "--seed", "7", "--json", "-",
               "--train-rows", "3000", "--workers", 3, "--local-steps", 10, "--dense-optimizer", "sgd", "--dense-lr", "0.02", *flags)
        lines = [result(finish(w)[0]) for w in [psworker(*run, "--rank", rank) for rank in range(3)]]
        node.stop()
        return read_tables([node.data]), lines[0]["logloss"]

    mean, slow = merged()
    want, fast = merged("--merge-weight", "adaptive")
    assert merged("--merge-weight", "adaptive")[0] == want
    assert fast < slow and weights(want, "merge", 1)[0] > 0 and "job/merge" not in mean


def test_settings_of_others_have_no_effect_for_one_worker(psds, tmp_path):
    data = synth(tmp_path / "log.tsv", 200, cardinality=50)
    run = ("train", "--data", data, "--servers", psds().address, "--format", "criteo", "--model", "lr", "--local-steps", 2)
    _, err = finish(psworker(*run, "--merge-weight", "adaptive", "--local-shards", 2))
    assert "--merge-weight adaptive has no effect: a job's only worker" in err and "--local-shards 2 has no effect without --local" in err
    assert "no effect" not in finish(psworker(*run))[1]
