"""Where psworker computes: a GPU's plug-in and its driver, found or not. The driver is a fake, and the plug-in is the far
device of the unit tests: the CPU's ops behind memory of their own, so that a run must end in the CPU's bits."""
import os
import re
import shutil
import subprocess

import pytest

from training import BIN, ROOT, finish, psds, result, synth  # noqa: F401  (a fixture)

FLAGS = ("--format", "criteo", "--bottom", "64", "--top", "64,32", "--dim", "8", "--batch", "300")
DRIVER = """int cuInit(unsigned flags) { return (int)flags + CODE; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
"""
PLUGIN = """#include <stdlib.h>
#include "tests/support/far_device.h"
EXTERN_C const struct device_ops *psworker_cuda(uint32_t abi) __attribute__((visibility("default")));
const struct device_ops *psworker_cuda(uint32_t abi)
{
    static struct far_device_plan plan = { .late = true, .replays = true };
    plan.refuses = getenv("FAR_REFUSES") != NULL;
    return abi == DEVICE_ABI ? far_device_ops(&device_cpu, &plan) : NULL;
}
"""
OTHER = "const void *psworker_cuda(unsigned abi) { (void)abi; return 0; }"


def compile_so(path, text, *flags):
    """A shared library of this text, its include paths from the root of the tree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.parent / f"{path.name}.c"
    source.write_text(text)
    subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-ffp-contract=off",
                    "-fno-math-errno", "-fno-trapping-math", "-Wl,-Bsymbolic", "-I", ROOT, "-o", path, source, *flags],
                   check=True)
    return path


def plugin(path):
    """The far device as psworker_cuda.so."""
    openblas = subprocess.run(["pkg-config", "--cflags", "--libs", "openblas"], check=True, capture_output=True, text=True)
    sources = [*(ROOT / "worker/compute").glob("*.c"), *(ROOT / "tests/support").glob("far_*.c"), *(ROOT / "proto").glob("codec*.c"),
               *(ROOT / f"common/{name}.c" for name in ("memory", "status"))]
    return compile_so(path, PLUGIN, "-fvisibility=hidden", *sources, *openblas.stdout.split(), "-lpthread", "-lm")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """driver(code): an environment in which libcuda.so.1 has one device, or cuInit() that code for a failure."""
    folder = tmp_path_factory.mktemp("driver")

    def environment(code=0):
        if not (folder / str(code)).exists():
            compile_so(folder / str(code) / "libcuda.so.1", DRIVER.replace("CODE", str(code)))
        return {**os.environ, "LD_LIBRARY_PATH": str(folder / str(code))}

    return environment


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A psworker that has a plug-in, as `make install` puts it."""
    folder = tmp_path_factory.mktemp("prefix")
    (folder / "bin").mkdir()
    shutil.copy(BIN / "psworker", folder / "bin")
    plugin(folder / "lib/psd/psworker_cuda.so")
    return folder / "bin/psworker"


def run(program, command, *flags, env=None):
    return subprocess.Popen([program, command, *map(str, flags)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=env)


def no_driver():
    """None is found here, whatever the machine has."""
    return {**os.environ, "LD_LIBRARY_PATH": "/nonexistent"}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.tsv"
    synth(path, 6000, cardinality=50)
    return path


def has_driver():
    return subprocess.run(["sh", "-c", "ldconfig -p | grep -q libcuda.so.1"]).returncode == 0


def test_without_a_driver_auto_takes_the_cpu_and_says_why(log):
    if has_driver():
        pytest.skip("there is one")
    flags = ("train", "--data", log, *FLAGS, "--local", "--json", "-")
    out, err = finish(run(BIN / "psworker", *flags, "--log-level", "debug", env=no_driver()))
    assert re.search(r"debug computing on the CPU: there is no NVIDIA driver \(libcuda", err)
    assert "computing on cpu: " in err
    result(out)
    assert "NVIDIA" not in finish(run(BIN / "psworker", *flags, env=no_driver()))[1]


def test_without_a_driver_cuda_is_one_sentence_and_exit_1(log):
    if has_driver():
        pytest.skip("there is one")
    for command, more in (("train", ("--local",)), ("eval", ("--checkpoint", log.parent)), ("predict", ("--checkpoint", log.parent))):
        _, err = finish(run(BIN / "psworker", command, "--data", log, *FLAGS, *more, "--device", "cuda", env=no_driver()), status=1)
        assert len(err.splitlines()) == 1 and err.startswith("psworker: there is no NVIDIA driver (libcuda")


def test_nobody_asks_for_a_driver_with_device_cpu(log, driver):
    _, err = finish(run(BIN / "psworker", "train", "--data", log, *FLAGS, "--local", "--device", "cpu", env=driver(100)))
    assert "computing on cpu: " in err and "on the CPU" not in err


def test_a_driver_that_fails_is_reported(log, driver):
    _, err = finish(run(BIN / "psworker", "train", "--data", log, *FLAGS, "--local", "--device", "cuda", env=driver(35)), status=1)
    assert err == "psworker: the NVIDIA driver has no device for us: it fails (35)\n"


def test_a_driver_without_the_plug_in_is_reported(log, driver, tmp_path):
    shutil.copy(BIN / "psworker", tmp_path)
    flags = ("train", "--data", log, *FLAGS, "--local")
    _, err = finish(run(tmp_path / "psworker", *flags, "--device", "cuda", env=driver()), status=1)
    assert err.startswith("psworker: there is no psworker_cuda.so beside psworker or in ../lib/psd")
    _, err = finish(run(tmp_path / "psworker", *flags, env=driver()))
    assert "computing on the CPU: there is no psworker_cuda.so beside psworker" in err


def refuse(program, log, env, words):
    """With cuda a sentence of these words and the end, with auto one in the log and the CPU."""
    flags = ("train", "--data", log, *FLAGS, "--local")
    _, err = finish(run(program, *flags, "--device", "cuda", env=env), status=1)
    assert err.startswith("psworker: ") and words in err and len(err.splitlines()) == 1
    _, err = finish(run(program, *flags, env=env))
    assert "info  computing on the CPU: " in err and words in err and "computing on cpu: " in err


def test_a_plug_in_of_another_version_is_reported(log, driver, tmp_path):
    shutil.copy(BIN / "psworker", tmp_path)
    compile_so(tmp_path / "psworker_cuda.so", OTHER)
    refuse(tmp_path / "psworker", log, driver(), "is of another version of psworker")


def test_a_device_that_does_not_open_is_reported(log, driver, installed):
    refuse(installed, log, {**driver(), "FAR_REFUSES": "1"}, "far: it does not want to")


def probabilities(program, env, model, log, device):
    out, _ = finish(run(program, "predict", "--data", log, *FLAGS, "--labelled", "--checkpoint", model, "--device", device, env=env))
    return out


@pytest.mark.parametrize("flags", [(), ("--wide", "--batch-norm", "--dropout", "0.2", "--l2-dense", "0.001", "--l2-embedding", "0.001"),
                                   ("--interaction", "concat", "--compute", "bf16", "--threads", "2")])
def test_a_run_on_a_device_with_memory_of_its_own_ends_in_the_cpus_bits(flags, log, driver, installed, tmp_path):
    flags, scores = (*FLAGS, *flags), {}
    for device in ("cpu", "cuda", "auto"):
        model = tmp_path / device
        out, err = finish(run(installed, "train", "--data", log, "--valid-fraction", "0.2", "--epochs", "2", *flags, "--local",
                              "--save", model, "--device", device, "--json", "-", env=driver()))
        assert f"computing on {'cpu' if device == 'cpu' else 'far'}: " in err
        r = result(out)
        scores[device] = (r["auc"], r["logloss"], (model / "checkpoints/00000000000000000001").exists(), sorted(
            p.read_bytes() for p in model.rglob("*") if p.is_file() and p.name != "MANIFEST"))
    assert scores["cuda"] == scores["cpu"] and scores["auto"] == scores["cpu"]


def test_predictions_are_the_cpus_wherever_they_are_made(log, driver, installed, tmp_path):
    finish(run(installed, "train", "--data", log, *FLAGS, "--local", "--save", tmp_path / "m", "--device", "cuda", env=driver()))
    on_cpu = probabilities(installed, driver(), tmp_path / "m", log, "cpu")
    assert len(on_cpu.splitlines()) == 6000
    assert probabilities(installed, driver(), tmp_path / "m", log, "cuda") == on_cpu


def test_over_servers_lock_step_gives_the_cpus_bits(psds, log, driver, installed):
    scores = []
    for device in ("cpu", "cuda"):
        node = psds("--shards", 2)
        out, _ = finish(run(installed, "train", "--data", log, "--valid-fraction", "0.2", *FLAGS, "--servers", node.address, "--device",
                            device, "--json", "-", env=driver()))
        r = result(out)
        scores.append((r["auc"], r["logloss"]))
    assert scores[0] == scores[1]


def test_with_steps_ahead_it_learns(psds, log, driver, installed):
    """Three steps are under way at a time, and pulls ahead of them."""
    node = psds("--shards", 2)
    out, _ = finish(run(installed, "train", "--data", log, "--valid-fraction", "0.2", *FLAGS, "--epochs", "4", "--mode", "async", "--ahead",
                        "4", "--row-cache", "0", "--servers", node.address, "--device", "cuda", "--json", "-", env=driver()))
    assert result(out)["auc"] > 0.55
