"""psworker on a GPU that is emulated: the plug-in's own files, kernels, products, streams and graphs, under a scheduler that keeps
nothing but what CUDA promises (tests/emu). The driver is a fake. The CPU's run is the yardstick."""

import os
import shutil
import subprocess

import pytest

from training import BIN, ROOT, finish, psds, result, synth  # noqa: F401  (a fixture)

FLAGS = ("--format", "criteo", "--bottom", "32", "--top", "32,16", "--dim", "8", "--batch", "250", "--valid-fraction", "0.2")
DRIVER = "int cuInit(unsigned f) { return (int)f; }\nint cuDeviceGetCount(int *n) { *n = 1; return 0; }\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """In which libcuda.so.1 has one device."""
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", folder / "libcuda.so.1", "-"], input=DRIVER.encode(), check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(scope="module")
def psworker(tmp_path_factory):
    """A psworker with the emulated plug-in beside it."""
    folder = tmp_path_factory.mktemp("bin")
    subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={BIN.parents[1]}", f"VARIANT={BIN.parent.name}", "emu-plugin"],
                   cwd=ROOT, check=True)
    shutil.copy(BIN / "psworker", folder)
    shutil.copy(BIN.parent / "emu/psworker_cuda.so", folder)
    return folder / "psworker"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.tsv"
    synth(path, 3000, cardinality=50)
    return path


@pytest.fixture
def train(psworker, environment, log):
    """train(device, flag ...): what the run's result says, and its log."""

    def run(device, *flags):
        process = subprocess.Popen([psworker, "train", "--data", log, *FLAGS, "--device", device, "--json", "-", *flags],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        out, err = finish(process)
        assert ("computing on cuda: emulated device" in err) == (device == "cuda")
        return result(out), err

    return run


@pytest.mark.parametrize("compute, apart", [("fp32", 1e-5), ("tf32", 1e-3), ("bf16", 5e-3)])
def test_a_run_in_one_process_learns_what_the_cpus_does(train, compute, apart):
    gpu, log_text = train("cuda", "--local", "--compute", compute)
    cpu, _ = train("cpu", "--local")
    assert f"{'TF32' if compute == 'tf32' else compute} products by cublasLt" in log_text
    assert abs(gpu["logloss"] - cpu["logloss"]) < apart
    assert abs(gpu["auc"] - cpu["auc"]) < 5 * apart


@pytest.mark.parametrize("flags", [("--wide", "--batch-norm", "--l2-dense", "0.001"), ("--interaction", "concat", "--dropout", "0.2")])
def test_switches_of_the_model_are_the_cpus(train, flags):
    """By SGD: the bias before a norm has a gradient of roundings alone, of which Adagrad makes steps of full length."""
    flags = ("--local", "--optimizer", "sgd", "--lr", "0.05", *flags)
    gpu, _ = train("cuda", *flags)
    cpu, _ = train("cpu", *flags)
    assert abs(gpu["logloss"] - cpu["logloss"]) < 1e-4


def test_over_servers_with_steps_ahead_it_learns(train, psds):
    node = psds("--shards", 2)
    gpu, _ = train("cuda", "--servers", node.address, "--mode", "async", "--ahead", "4", "--row-cache", "0", "--epochs", "3")
    assert gpu["auc"] > 0.55
