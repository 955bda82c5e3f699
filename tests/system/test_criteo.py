"""The main job on real click logs, against PyTorch's learning curves (golden/README.md, case 5)."""
import shutil
import statistics

import pytest
from training import finish, psds, psworker, result, share, shared  # noqa: F401

AUC, LOGLOSS = 0.7584, 0.4895
FLAGS = ("--format", "criteo", "--train-rows", 99000, "--batch", 128, "--dim", 16, "--bottom", "512,256,64", "--top",
         "512,256", "--optimizer", "adagrad", "--lr", 0.01, "--dense-optimizer", "same", "--init-scale", 0.05, "--epochs", 1, "--json", "-")


def run(psds, seed, *flags, workers=1, mode="bsp"):
    """One training run on a psd of its own; validation AUC and log-loss."""
    data = shared("data/criteo/criteo_dev_110000.tsv.zst")
    node = psds("--shards", 2)
    procs = [psworker("train", "--data", data, "--servers", node.address, "--seed", seed, "--mode", mode, "--workers",
                      workers, "--rank", r, *FLAGS, *flags) for r in range(workers)]
    outs = [finish(p, 600)[0] for p in procs]
    node.kill()
    shutil.rmtree(node.dir)  # 1.2 GB of log
    r = result(outs[0])
    assert r["validation_rows"] == 11000
    print(f"seed {seed} {mode} x{workers} {flags}: AUC {r['auc']:.4f}, log-loss {r['logloss']:.4f}, "
          f"{r['samples_per_s']:.0f} samples/s, {r['wire_bytes_per_sample']:.0f} bytes/sample")
    return r["auc"], r["logloss"]


# A part of a run (PS_SHARE) takes one. That one's figures are off by up to 0.003 where the mean's are off by 0.001: the benchmarks have them.
SEEDS = share([1, 2, 3], whole_up_to=3)  # a mean
ONE_OFF = 0.005


def mean(psds, *flags, **how):
    runs = [run(psds, seed, *flags, **how) for seed in SEEDS]
    return [statistics.mean(figure) for figure in zip(*runs)]


# What else learns as much, and how much less it may be. Without the warm-up that is there by default an asynchronous run now and then
# (one in twenty) learns 0.04 less: deploy/docs/benchmarks.md has figures.
WAYS = [(0.003, (), {"workers": 2, "mode": "async"}), (0.003, ("--staleness", 4), {"workers": 2, "mode": "ssp"}),
        (0.001, ("--push-codec", "int8", "--zstd"), {})]


@pytest.mark.timeout(1200)
def test_lock_step_has_pytorchs_auc_and_the_other_modes_and_int8_follow(psds):
    auc, logloss = mean(psds)
    one = 0 if len(SEEDS) == 3 else ONE_OFF
    assert abs(auc - AUC) < max(0.003, one) and abs(logloss - LOGLOSS) < max(0.004, one), (auc, logloss)
    for off, flags, how in share(WAYS):
        got, _ = mean(psds, *flags, **how)
        assert abs(got - auc) < max(off, one), (flags, how, got, auc)


# Rows 0 to 98,999 train, as above, with psworker's own settings: means of 8 seeds are 0.7601 and 0.7573
# (deploy/docs/benchmarks.md, "The defaults"). Those of before, Adagrad 0.01 for all tables and rows of +-0.05, had 0.7573 and 0.7479.
DEFAULTS = [(128, 0.7585), (2048, 0.7550)]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("batch,least", DEFAULTS)
def test_a_job_that_says_nothing_of_optimizers_learns_as_much_with_large_steps(batch, least):
    data = shared("data/criteo/criteo_dev_110000.tsv.zst")
    aucs = [result(finish(psworker("train", "--local", "--data", data, "--format", "criteo", "--train-rows", 99000, "--batch", batch, "--seed", seed,
                                   "--json", "-"), 600)[0])["auc"] for seed in SEEDS]
    print(f"defaults, batch {batch}, seeds {SEEDS}: AUC {aucs}")
    assert statistics.mean(aucs) > least
