"""make gpu-check without a GPU: its phases with programs that stand in for the real ones, its table from canned results."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = ["bags", "rows", "sums", "interact", "encode", "products", "slots", "model"]
FACTS = {"date": "2001-02-03 04:05 UTC", "device": "Some GPU", "sms": 7, "compute_capability": "9.0", "memory_bytes": 8 * 2**30,
         "driver_cuda": 13010, "cublaslt": 130103, "copy_gb_s": 1000.0, "gemm_tf32_tflop_s": 100.0, "gemm_bf16_tflop_s": 200.0,
         "h2d_gb_s": 50.0, "d2h_gb_s": 40.0, "launch_us": 2.5, "graph_launch_us": 4.25, "graph_us": 33.3}
STEP = {"kind": "step", "batch": 65536, "dim": 128, "products": "tf32", "n_rows": 9, "graph_us": 2000.0, "eager_us": 2100.0,
        "floor_us": 1000.0, "ratio": 2.0, "samples_per_s": 32768000, "whole_samples_per_s": 4096000}
OP = {"kind": "op", "batch": 65536, "dim": 128, "products": "tf32", "op": "bag sum", "graph_us": 30.04, "eager_us": 31.0,
      "floor_bytes_us": 15.02, "floor_flop_us": None, "floor_us": 15.02, "ratio": 2.0}
PASSED = {"phase": "facts", "result": "passed", "seconds": 3, "why": ""}


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def report(folder, expect=0):
    got = subprocess.run([sys.executable, str(ROOT / "tests/gpu/report.py"), str(folder)], capture_output=True, text=True, timeout=60)
    assert got.returncode == expect, got.stderr
    return got.stdout if not expect else got.stderr


def torch_line(way, rate, **more):
    return {"batch": 65536, "dim": 128, "products": "tf32", "way": way, "samples_per_s": rate, **more}


# --- the table ---

def test_the_table_says_what_was_measured(tmp_path):
    write(tmp_path / "phases.jsonl", [PASSED])
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    write(tmp_path / "bench.jsonl", [OP, STEP])
    write(tmp_path / "torch.jsonl", [torch_line("eager", 4e6), torch_line("graph", 8.192e6), torch_line("eager", 9e9, dim=16)])
    write(tmp_path / "end_to_end.jsonl", [{"case": "GPU", "shards": 8, "result": {"samples_per_s": 123456.7, "bottleneck": "pull"}},
                                          {"case": "broken", "shards": 8, "why": "psworker ended with status 1"},
                                          *({"case": f"AUC, {device}", "device": device, "seed": seed, "shards": 8, "result": {"auc": auc}}
                                            for device, seed, auc in (("cuda", 1, 0.7501), ("cpu", 1, 0.75), ("cuda", 2, 0.7)))])
    text = report(tmp_path)
    assert "2001-02-03 04:05 UTC: Some GPU, 7 SMs, compute capability 9.0, 8 GiB; driver for CUDA 13.1, cublasLt 13.1.3." in text
    assert "| 65536 | 128 | tf32 | 2,000 | 2,100 | 1,000 | 2.00 | 32.77 | 4.10 | 8.19 (graph) | 4.00 |" in text
    assert "| bag sum | 30.0 | 31.0 | 15.0 | - | 2.00 |" in text
    assert "| GPU | 8 | 123,457 | pull | - | - |" in text
    assert "| broken | 8 | - | - | - | psworker ended with status 1 |" in text
    assert "GPU less CPU: +0.00010 (seed 1)." in text
    assert "| facts | passed | 3 s | - |" in text


def test_what_was_not_measured_is_a_dash_and_no_figure(tmp_path):
    write(tmp_path / "phases.jsonl", [PASSED, {"phase": "torch", "result": "skipped", "seconds": 0, "why": "PyTorch is not there"}])
    write(tmp_path / "bench.jsonl", [{**STEP, "graph_us": None}])
    write(tmp_path / "torch.jsonl", [{key: STEP[key] for key in ("batch", "dim", "products")} | {"way": "compiled", "why": "skipped"}])
    text = report(tmp_path)
    assert "There are no facts about a GPU." in text
    assert "| 65536 | 128 | tf32 | - | 2,100 | 1,000 | 2.00 | 32.77 | 4.10 | - | - |" in text
    assert "| torch | skipped | 0 s | PyTorch is not there |" in text
    assert "End to end" not in text and "Ops at" not in text


def test_a_line_that_was_cut_short_is_no_result(tmp_path):
    write(tmp_path / "phases.jsonl", [PASSED])
    (tmp_path / "bench.jsonl").write_text(json.dumps(STEP) + '\n{"kind":"step","batch":20')
    (tmp_path / "facts.json").write_text('{"date":')
    assert report(tmp_path).count("| tf32 |") == 1


def test_a_folder_without_results_is_refused(tmp_path):
    assert "expected a folder with phases.jsonl" in report(tmp_path, expect=1)


# --- the phases ---

class Stand:
    """Programs that stand in for the real ones; phases that need what a machine may lack find it missing."""

    def __init__(self, folder):
        self.programs, self.tools, self.out = folder / "programs", folder / "tools", folder / "out"
        for unit in UNITS:
            self.program(f"unit/test_{unit}", "exit 0")
        self.program("gpu/facts", f"echo '{json.dumps(FACTS)}' >$1")
        self.program("gpu/bench", f"[ $1 = digest ] && echo 1234 || echo '{json.dumps(STEP)}' >$3/bench.jsonl")
        self.tool("pkg-config", "exit 1")
        self.tool("compute-sanitizer", "echo Device not supported; exit 1")

    def program(self, name, text):
        self.script(self.programs / name, text)

    def tool(self, name, text):
        self.script(self.tools / name, text)

    @staticmethod
    def script(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def check(self, expect, lack="", seconds=400):
        """What is said, and result and reason by phase."""
        env = {**os.environ, "OUT": str(self.out), "GPU_CHECK_SECONDS": str(seconds), "PATH": f"{self.tools}:{os.environ['PATH']}"}
        got = subprocess.run([str(ROOT / "tests/gpu/check.sh"), "make", str(self.out), lack, str(self.programs)], env=env,
                             capture_output=True, text=True, timeout=120)
        assert got.returncode == expect, got.stdout + got.stderr
        path = self.out / "phases.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return got.stdout + got.stderr, {line["phase"]: (line["result"], line["why"]) for line in lines}


@pytest.fixture
def stand(tmp_path):
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    return Stand(tmp_path)


def test_phases_that_a_machine_cannot_do_are_skipped_with_the_reason(stand):
    said, phases = stand.check(0)
    assert all(phases[name] == ("passed", "") for name in ("facts", "build", "tests", "three-runs", "bench")), phases
    assert phases["torch"][0] == "skipped" and phases["torch"][1].startswith("torch_step.py: ")
    assert phases["end-to-end"] == ("skipped", "psd cannot be built here: its libraries are missing")
    assert phases["racecheck"] == ("skipped", "compute-sanitizer does not support this device")
    assert said.index("| 65536 | 128 | tf32 |") < said.index("| synccheck | skipped |")
    assert (stand.out / "table.md").read_text().startswith("# gpu-check")


def test_without_a_gpu_it_ends_with_one_sentence(stand):
    stand.program("gpu/facts", "echo 'facts: no GPU: no \"CUDA\"-capable device (100)' >&2; exit 1")
    said, phases = stand.check(1)
    assert phases["facts"] == ("failed", "facts: no GPU: no CUDA-capable device (100)")
    assert said.count("no GPU") == 1 and list(phases) == ["build-facts", "facts"]


def test_without_nvcc_it_says_so(stand):
    said, phases = stand.check(1, lack="nvcc")
    assert said == "gpu-check: there is no nvcc, so nothing for a GPU can be built\n" and not phases


def test_runs_that_end_in_other_bits_fail(stand):
    stand.program("gpu/bench", "[ $1 = digest ] && echo $RANDOM$RANDOM || true")
    _, phases = stand.check(1)
    assert phases["three-runs"] == ("failed", "run 2 ended in other bits than run 1")
    assert phases["bench"][0] == "passed"


def test_a_test_program_that_fails_fails_the_check_and_the_others_run(stand):
    stand.program("unit/test_sums", "exit 1")
    stand.program("unit/test_model", f"touch {stand.out}/ran")
    _, phases = stand.check(1)
    assert phases["tests"] == ("failed", "these failed: test_sums") and (stand.out / "ran").exists()


def test_a_sanitizer_that_finds_something_fails_the_check(stand):
    stand.tool("compute-sanitizer", "echo '========= Race'; [[ $2 != racecheck ]] || exit 9")
    _, phases = stand.check(1)
    assert phases["racecheck"] == ("failed", "racecheck found something in bags: ========= Race") and phases["memcheck"][0] == "passed"


def test_what_takes_too_long_is_cut_and_what_has_no_time_left_is_skipped(stand):
    stand.program("gpu/bench", f"[ $1 = digest ] && echo 1 && exit; echo '{json.dumps(STEP)}' >$3/bench.jsonl; exec sleep 100")
    said, phases = stand.check(0, seconds=8)
    assert phases["bench"][0] == "cut"
    assert phases["torch"] == phases["synccheck"] == ("skipped", "there was no time left")
    assert "| 65536 | 128 | tf32 |" in said


def test_tests_that_hang_fail_the_check(stand):
    stand.program("unit/test_slots", "exec sleep 100")
    _, phases = stand.check(1, seconds=6)
    assert phases["tests"][0] == "cut" and phases["three-runs"][0] == "skipped"
