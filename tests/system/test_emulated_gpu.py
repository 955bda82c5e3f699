"""psworker on a GPU that is emulated: the plug-in's own files, kernels, products, streams and graphs, under a scheduler that keeps
nothing but what CUDA promises (tests/emu). The driver is a fake. The CPU's run is the yardstick."""

import os
import shutil
import subprocess

import pytest

from checkpoint import read_tables
from training import BIN, ROOT, finish, keyless_log, psds, result, share, synth, wait_for  # noqa: F401  (a fixture)

FLAGS = ("--format", "criteo", "--bottom", "32", "--top", "32,16", "--dim", "8", "--batch", "250", "--valid-fraction", "0.2")
# It notes which of its machine's workers it was asked by, if it is told where.
DRIVER = """#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned f)
{
    FILE *out = getenv("NOTES") ? fopen(getenv("NOTES"), "a") : NULL;
    if (out)
        fprintf(out, "%s/%s\\n", getenv("RANK"), getenv("LOCAL_RANK")), fclose(out);
    return (int)f;
}
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
"""


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

    def run(device, *flags, data=log, base=FLAGS):
        process = subprocess.Popen([psworker, "train", "--data", data, *base, "--device", device, "--json", "-", *map(str, flags)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        out, err = finish(process)
        at = {"cuda": "cuda:0", "cuda:all": "cuda:0"}.get(device, device).split(",")[0]
        assert f"computing on {at}: {'emulated device' if 'cuda' in at else ''}" in err
        return result(out), err

    return run


@pytest.mark.parametrize("compute, apart", share([("fp32", 1e-5), ("tf32", 1e-3), ("bf16", 5e-3)]))
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


@pytest.mark.parametrize("flags", [("lr",), ("fm", "--dim", "8"), ("deepfm", "--dim", "8", "--top", "32,16"),
                                   ("dcnv2", "--dim", "6", "--top", "32,16", "--cross-rank", "5", "--clip-global-norm", "0.1")], ids=lambda flags: flags[0])
def test_models_beside_dlrm_are_the_cpus(train, flags):
    base = ("--format", "criteo", "--batch", "250", "--valid-fraction", "0.2", "--local", "--model", *flags)
    gpu, _ = train("cuda", base=base)
    cpu, _ = train("cpu", base=base)
    assert abs(gpu["logloss"] - cpu["logloss"]) < 1e-4


def test_fields_of_other_dims_are_projected_as_on_the_cpu(train):
    flags = ("--local", "--field", "C1:dim=3", "--field", "C[5-9]:dim=12,pooling=mean", "--l2-embedding", "1e-4", "--dropout", "0.1")
    gpu, log_text = train("cuda", *flags)
    cpu, _ = train("cpu", *flags)
    assert "fields have several tables" in log_text
    assert abs(gpu["logloss"] - cpu["logloss"]) < 1e-4


@pytest.mark.parametrize("codecs", [(), ("--push-codec", "onebit")], ids=lambda codecs: " ".join(codecs) or "fp32")
def test_meta_learning_is_the_cpus(train, codecs):
    flags = ("--local", "--meta", "C1", "--meta-inner-steps", "2", *codecs)
    gpu, log_text = train("cuda", *flags)
    cpu, _ = train("cpu", *flags)
    assert "gradients are encoded on the CPU: it changes them before (--meta)" in log_text
    assert abs(gpu["logloss"] - cpu["logloss"]) < 1e-4


def test_whole_layers_are_the_cpus(train):
    """Of 18,000 floats: longer than a row may be. The device encodes them."""
    base = ("--format", "criteo", "--bottom", "32", "--top", "150,120", "--dim", "8", "--batch", "250", "--valid-fraction", "0.2")
    flags = ("--local", "--dense-optimizer", "lamb", "--dense-lr", "0.01", "--dense-push-codec", "onebit")
    gpu, log_text = train("cuda", *flags, base=base)
    cpu, _ = train("cpu", *flags, base=base)
    assert "gradients leave the device encoded" in log_text
    assert abs(gpu["logloss"] - cpu["logloss"]) < 1e-3


WHOLE = ("--dense-optimizer", "lamb", "--dense-lr", "0.01")
WIDE = ("--format", "criteo", "--job", "ctr", "--bottom", "32", "--top", "150,120", "--dim", "8", "--batch", "250")


def whole_layers(train, psds, device, *flags, second=()):
    """The tables of two runs of a job. If the second one does not name the optimizer, its model has the layers in blocks at first."""
    node = psds("--shards", 2)
    train(device, "--servers", node.address, *WHOLE, *flags, base=WIDE)
    _, log_text = train(device, "--servers", node.address, *flags, *second, base=WIDE)
    node.stop()
    tables = read_tables([node.data])
    assert [len(tables[f"ctr/top.{layer}.W"]) for layer in (0, 1)] == [1, 1]
    return tables, log_text


def test_layers_are_encoded_as_whole_as_their_tables_have_them(train, psds):
    flags = ("--dense-push-codec", "onebit", "--push-codec", "int8")
    there, log_text = whole_layers(train, psds, "cuda", *flags)
    here, _ = whole_layers(train, psds, "cuda", *flags, "--device-encode", "off")
    assert "gradients leave the device encoded" in log_text
    assert there == here


@pytest.mark.parametrize("codecs", [(), ("--dense-push-codec", "onebit")], ids=lambda codecs: " ".join(codecs) or "fp32")
def test_two_devices_train_whole_layers(train, psds, codecs):
    """As one device does; and a job goes on without its optimizer's name as with it."""
    one, _ = train("cuda", "--local", "--valid-fraction", "0.2", *WHOLE, *codecs, base=WIDE)
    two, log_text = train("cuda:0,1", "--local", "--valid-fraction", "0.2", *WHOLE, *codecs, base=WIDE)
    assert "each batch is divided among 2 devices" in log_text
    assert abs(two["logloss"] - one["logloss"]) < 1e-3
    named, _ = whole_layers(train, psds, "cuda:0,1", *codecs, second=WHOLE)
    assert whole_layers(train, psds, "cuda:0,1", *codecs)[0] == named


@pytest.mark.parametrize("codecs", [(), ("--push-codec", "onebit", "--dense-push-codec", "topk", "--topk", "0.3"), ("--device-encode", "off")],
                         ids=lambda codecs: " ".join(codecs) or "fp32")
def test_batches_without_any_key_and_of_one_sample_are_the_cpus(train, tmp_path, codecs):
    flags = tuple(map(str, keyless_log(tmp_path / "log.csv")[2:]))
    gpu, _ = train("cuda", "--local", *codecs, data=tmp_path / "log.csv", base=flags)
    cpu, _ = train("cpu", "--local", *codecs, data=tmp_path / "log.csv", base=flags)
    assert gpu["samples"] == 41 and abs(gpu["logloss"] - cpu["logloss"]) < 1e-4


def test_local_steps_are_the_cpus(train, psds):
    results = []
    for device in ("cuda", "cpu"):
        got, log_text = train(device, "--servers", psds().address, "--local-steps", "4", "--slow-momentum", "0.3")
        assert ("it changes them before (--local-steps" in log_text) == (device == "cuda")
        results.append(got["logloss"])
    assert abs(results[0] - results[1]) < 1e-4


def test_over_servers_with_steps_ahead_it_learns(train, psds):
    node = psds("--shards", 2)
    gpu, _ = train("cuda", "--servers", node.address, "--mode", "async", "--ahead", "4", "--row-cache", "0", "--epochs", "3")
    assert gpu["auc"] > 0.55


# ---- several devices ----

def test_a_named_device_makes_the_same_bits_and_others_are_refused(train, psworker, environment, log, tmp_path):
    for device in ("cuda", "cuda:1"):
        train(device, "--local", "--save", tmp_path / device)
    assert read_tables([tmp_path / "cuda:1"]) == read_tables([tmp_path / "cuda"])
    flags = ("--data", log, *FLAGS, "--labelled", "--checkpoint", tmp_path / "cuda")
    scores = []
    for device, at in (("cuda", "cuda:0"), ("cuda:1", "cuda:1")):
        for command in ("predict", "eval"):
            process = subprocess.Popen([psworker, command, *map(str, flags if command == "predict" else [f for f in flags if f != "--labelled"]),
                                        "--device", device], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            out, err = finish(process)
            assert f"computing on {at}: " in err
            scores.append(out)
    assert scores[0] == scores[2] and len(scores[0].splitlines()) == 3000
    for device, status, words in (("cuda:2", 1, "cuda:2 is not there: the driver has 2 devices, cuda:0 to cuda:1"),
                                  ("cuda:", 2, '--device: "cuda:" is not one of auto|cpu|cuda|cuda:N'),
                                  ("cuda:-1", 2, "is not one of"), ("gpu", 2, "is not one of"),
                                  ("cuda:1,", 2, '--device: "cuda:1," is not one of auto|cpu|cuda|cuda:N|cuda:N,N,...|cuda:all, N from 0'),
                                  ("cuda:0,1,0", 2, "--device: cuda:0 is named twice"),
                                  ("cuda:0,7", 1, "cuda:7 is not there: the driver has 2 devices, cuda:0 to cuda:1"),
                                  ("cuda:" + ",".join(map(str, range(17))), 2, "more than 16 GPUs are named")):
        process = subprocess.Popen([psworker, "train", "--local", "--data", log, *FLAGS, "--device", device], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment)
        _, err = finish(process, status=status)
        assert words in err and len(err.splitlines()) == 1


def test_batches_that_two_devices_share_teach_what_one_learns(train, tmp_path):
    """By SGD, with which roundings stay roundings. The same bits in each run, with any number of threads."""
    flags = ("--local", "--batch", "109", "--wide", "--field", "C1:dim=3", "--optimizer", "sgd", "--lr", "0.05")
    one, _ = train("cuda", *flags)
    two, log_text = train("cuda:0,1", *flags, "--save", tmp_path / "two")
    again, _ = train("cuda:all", *flags, "--threads", "2", "--save", tmp_path / "again")
    assert "each batch is divided among 2 devices: cuda:0, cuda:1" in log_text
    assert abs(two["logloss"] - one["logloss"]) < 1e-4 and abs(two["auc"] - one["auc"]) < 5e-4
    assert two["samples"] == one["samples"] == 2400 and two["samples"] % 109 == 2
    assert again["logloss"] == two["logloss"] and read_tables([tmp_path / "again"]) == read_tables([tmp_path / "two"])


def test_two_devices_of_a_worker_of_servers_have_its_cache_and_codecs(train, psds, tmp_path):
    """One pull and one push a step, as of one device: the tables of a run in one process."""
    flags = ("--push-codec", "onebit", "--dense-push-codec", "topk", "--topk", "0.3")
    local, _ = train("cuda:1,0", "--local", *flags, "--save", tmp_path / "local", base=ENCODED)
    node = psds("--shards", 2)
    over, _ = train("cuda:1,0", "--servers", node.address, *flags, base=ENCODED)
    node.stop()
    assert over["residual_rows"] == local["residual_rows"] > 0
    assert read_tables([node.data]) == read_tables([tmp_path / "local"])


# A launcher's variables for ranks 0 and 1, and the devices that they take.
@pytest.mark.parametrize("variables, devices", [
    (({}, {}), (0, 1)),
    (({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"},) * 2, (0, 1)),  # of the script that started both
    (({"RANK": "0", "LOCAL_RANK": "1"}, {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "RANK": "x"}), (1, 0)),
], ids=("ranks", "a script's", "local ranks"))
def test_ranks_take_different_devices(psds, psworker, environment, log, variables, devices):
    node = psds()
    processes = [subprocess.Popen([psworker, "train", "--data", log, *FLAGS, "--servers", node.address, "--workers", "2", "--rank", str(rank)],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment, **variables[rank]})
                 for rank in (0, 1)]
    for process, device in zip(processes, devices):
        _, err = finish(process)
        assert f"computing on cuda:{device}: emulated device" in err


def test_trials_at_once_take_different_devices(psworker, environment, log, tmp_path):
    notes = tmp_path / "notes"
    process = subprocess.Popen([psworker, "tune", "--local", "--data", log, *FLAGS, "--trials", "5", "--parallel", "2", "--search", "lr=0.01..0.1"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment, "NOTES": str(notes)})
    finish(process)
    assert set(notes.read_text().split()) == {"0/0", "0/1"}


JOB_OF_TWO = ("--format", "criteo", "--bottom", "32", "--top", "32,16", "--dim", "8", "--batch", "100", "--wide", "--mode", "async", "--workers", "2",
              "--warmup", "0", "--allow-lost-workers")


@pytest.fixture
def first_of_two(psds, psworker, environment, log, tmp_path):
    """first_of_two(flag ...): the tables that the first worker of two leaves, and its result. The second one has joined at clock 0 and waits for a
    log that nobody writes, so which rows are reused is the first one's own clock's business, and the same in every run."""
    os.mkfifo(tmp_path / "pipe.tsv")
    started = []

    def run(*flags):
        node = psds("--lease", "600s")
        job = (*JOB_OF_TWO, "--servers", node.address)
        second = subprocess.Popen([psworker, "train", "--data", tmp_path / "pipe.tsv", *job, "--rank", "1", "--device", "cpu"])
        started.append(second)
        wait_for("the second worker's join", lambda: node.stats()["totals"]["live_workers"] == 1)
        first = subprocess.Popen([psworker, "train", "--data", log, *job, "--rank", "0", "--epochs", "3", "--device", "cuda", "--json", "-", *flags],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        out, err = finish(first)
        second.kill()
        second.wait()
        node.stop()
        return read_tables([node.data]), result(out), err

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("clocks", share(("7", "1000")))
def test_rows_that_stay_on_the_device_change_no_bit(first_of_two, clocks):
    want, copied, _ = first_of_two("--reuse-clocks", clocks, "--device-cache", "0")
    got, kept, log_text = first_of_two("--reuse-clocks", clocks)
    small, some, _ = first_of_two("--reuse-clocks", clocks, "--device-cache", "4K")  # 128 rows
    assert got == want and small == want
    assert copied["device_rows_reused"] == 0 and copied["device_rows_copied"] > 0
    for r in (kept, some):
        assert r["device_rows_copied"] + r["device_rows_reused"] == copied["device_rows_copied"]
    # Of each row that the store had kept its first-order weight was kept too, and counted there.
    assert 0 < 2 * kept["device_rows_reused"] == kept["rows_cached"]
    assert 0 < some["device_rows_reused"] < kept["device_rows_reused"]
    assert "rows the device had" in log_text


def test_rows_stay_on_the_device_while_steps_overlap(first_of_two):
    _, r, log_text = first_of_two("--reuse-clocks", "1000", "--ahead", "4")
    assert r["device_rows_reused"] > 0 and "--ahead 4 has no effect" not in log_text


# ---- rows of a job's only worker, with their optimizer's states ----

REPLICAS = {
    "rowwise": ("--optimizer", "rowwise_adagrad", "--wide"),
    "onebit, flushed": ("--optimizer", "adagrad", "--push-codec", "onebit", "--residual-max", "20K"),
    "adam and int8": ("--optimizer", "adam", "--lr", "0.002", "--push-codec", "int8", "--decay", "cosine", "--decay-clocks", "30"),
    "sgd, asynchronously": ("--optimizer", "sgd", "--mode", "async", "--push-codec", "bf16", "--l2-embedding", "1e-4"),
    "momentum and topk": ("--optimizer", "momentum", "--lr", "0.001", "--push-codec", "topk", "--topk", "0.4", "--eval-every", "4"),
}


@pytest.fixture
def only_worker(train, psds):
    """only_worker(flag ...): the tables that a job of one worker over two shards leaves, its result, and its log."""

    def run(*flags):
        node = psds("--shards", 2)
        got, log_text = train("cuda", "--servers", node.address, *flags)
        node.stop()
        return read_tables([node.data]), got, log_text

    return run


@pytest.mark.parametrize("job", share(list(REPLICAS)))
def test_rows_that_the_device_changes_itself_are_the_servers(only_worker, job):
    want, plain, _ = only_worker(*REPLICAS[job], "--device-cache", "0")
    got, kept, log_text = only_worker(*REPLICAS[job], "--device-cache", "2M")
    small, some, _ = only_worker(*REPLICAS[job], "--device-cache", "4K")
    assert got == want and small == want
    assert kept["logloss"] == some["logloss"] == plain["logloss"]
    assert plain["device_rows_reused"] == plain["device_rows_held"] == 0
    assert "the device has the rows with their optimizer's states" in log_text and "the device holds" in log_text
    for r in (kept, some):
        assert r["device_rows_copied"] + r["device_rows_reused"] == plain["device_rows_copied"]
    assert 0 < some["device_rows_reused"] < kept["device_rows_reused"] and 0 < some["device_rows_held"] < kept["device_rows_held"]
    assert some["device_rows_bytes"] <= 4096 and kept["device_rows_copied"] == kept["device_rows_held"]


def test_rows_that_the_device_cannot_change_stay_in_the_row_cache(only_worker):
    for flags, why in ((("--optimizer", "ftrl"), "the device knows sgd"), (("--pull-codec", "bf16"), "rows are pulled in another codec")):
        want, _, _ = only_worker(*flags, "--device-cache", "0")
        got, r, log_text = only_worker(*flags, "--device-cache", "2M")
        assert got == want and r["device_rows_held"] == 0 and f"rows stay in the row cache: {why}" in log_text
    for flags, why in ((("--init", "auto"), "fields have several tables"), (("--local-steps", 4), "steps between pushes change them"),
                       (("--device-encode", "off"), "the device does not encode"), (("--device-cache", 8), "the device has no place for one")):
        _, r, log_text = only_worker(*flags)
        assert r["device_rows_held"] == 0 and f"rows stay in the row cache: {why}" in log_text


# ---- gradients that leave the device encoded ----

# A model with tensors of many blocks, of a part of one, and of a float; a bound at which residuals are flushed every few steps.
ENCODED = ("--format", "criteo", "--job", "ctr", "--bottom", "300,32", "--top", "32", "--dim", "8", "--batch", "64", "--seed", "7", "--wide",
           "--optimizer", "adagrad", "--lr", "0.02", "--residual-max", "30K")
CODECS = {
    "onebit and topk": ("--push-codec", "onebit", "--dense-push-codec", "topk", "--topk", "0.05", "--dense-push-warmup", 5),
    "topk and onebit": ("--push-codec", "topk", "--topk", "0.3", "--dense-push-codec", "onebit", "--batch-norm"),
    "int8 and bf16": ("--push-codec", "int8", "--dense-push-codec", "bf16", "--wide-push-codec", "fp16"),
    "fp32": (),
}


def tables_of(train, folder, way, *flags, data):
    """The tables that a run in one process ends in, and its result."""
    got, log = train("cuda", "--local", "--save", folder, "--device-encode", way, *flags, data=data, base=ENCODED)
    assert ("gradients leave the device encoded" in log) == (way == "on")
    return read_tables([folder]), got


@pytest.mark.parametrize("codecs", share(list(CODECS)))
def test_gradients_that_leave_the_device_encoded_are_those_the_host_encodes(train, log, tmp_path, codecs):
    there, there_says = tables_of(train, tmp_path / "there", "on", *CODECS[codecs], data=log)
    here, here_says = tables_of(train, tmp_path / "here", "off", *CODECS[codecs], data=log)
    assert there == here
    has_residuals = "onebit" in codecs
    assert (there_says["residual_rows"] > 0) == (there_says["residual_settled"] > 0) == has_residuals
    assert there_says["residual_rows"] == here_says["residual_rows"]
    assert there_says["residual_settled"] == here_says["residual_settled"]


def test_residuals_go_from_run_to_run_over_servers(train, log, psds, tmp_path):
    """A first half and a second one, each encoded on the device or on the host: the bits of one run."""
    codecs = CODECS["onebit and topk"]
    want, _ = tables_of(train, tmp_path / "one", "off", *codecs, data=log)
    lines = log.read_text().splitlines(keepends=True)
    halves = [tmp_path / "0.tsv", tmp_path / "1.tsv"]
    halves[0].write_text("".join(lines[:23 * 64]))
    halves[1].write_text("".join(lines[23 * 64:]))
    for number, ways in enumerate((("on", "on"), ("on", "off"), ("off", "on"))):
        node = psds("--shards", number + 1)
        for half, way in zip(halves, ways):
            got, _ = train("cuda", "--servers", node.address, "--state-dir", tmp_path / f"state{number}", "--state-every", 5,
                           "--device-encode", way, *codecs, data=half, base=ENCODED)
            assert got["residual_settled"] > 0 and got["residual_rows"] > 0
        node.stop()
        assert read_tables([node.data]) == want


def test_with_steps_ahead_encoded_gradients_learn(train, psds):
    """Codecs that are chosen for the link while steps are under way, and flushed residuals."""
    node = psds("--shards", 2)
    got, log = train("cuda", "--servers", node.address, "--mode", "async", "--ahead", "4", "--row-cache", "0", "--epochs", "3",
                     "--push-codec", "onebit", "--dense-push-codec", "auto", "--residual-max", "30K")
    assert "gradients leave the device encoded" in log and " compute a step: " in log
    assert got["auc"] > 0.55 and got["residual_settled"] > 0


# ---- rows that come as the servers send them ----

PULLED = "rows come to the device as the servers send them"


def pulled(train, psds, way, *flags, shards=2, **kw):
    """The servers' tables after a run in lock step, and what it says."""
    node = psds("--shards", shards)
    got, log = train("cuda", "--servers", node.address, "--row-cache", "0", "--device-encode", way, *flags, **kw)
    assert (PULLED in log) == (way == "on")
    node.stop()
    return read_tables([node.data]), {key: got[key] for key in ("loss", "logloss", "auc", "samples", "rows_pulled")}


@pytest.mark.parametrize("codec, shards", share([("bf16", 3), ("fp16", 1)]))
def test_rows_that_the_device_decodes_have_the_bits_of_rows_that_the_host_decodes(train, psds, codec, shards):
    """With validations between the epochs; answers of one shard are so large that their buffers are taken."""
    flags = ("--pull-codec", codec, "--wide", "--epochs", "2", "--net-threads", shards)
    there, here = (pulled(train, psds, way, *flags, shards=shards) for way in ("on", "off"))
    assert there == here


def test_batches_without_rows_are_decoded_too(train, psds, tmp_path):
    flags = tuple(map(str, keyless_log(tmp_path / "log.csv")[2:]))
    there, here = (pulled(train, psds, way, data=tmp_path / "log.csv", base=flags) for way in ("on", "off"))
    assert there == here and there[1]["samples"] == 41


def test_fields_of_other_dims_leave_the_rows_to_the_host(train, psds):
    _, log = train("cuda", "--servers", psds().address, "--row-cache", "0", "--field", "C1:dim=4")
    assert PULLED not in log
