"""make gpu-check without a GPU: its phases with programs that stand in for the real ones, its table from canned results."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from training import BIN

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A make that runs these tests would have its own one here speak as its child.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
UNITS = re.search(r'units="(.*)"', (ROOT / "tests/gpu/check.sh").read_text())[1].split()
FACTS = {"date": "2001-02-03 04:05 UTC", "device": "Some GPU", "sms": 7, "compute_capability": "9.0", "memory_bytes": 8 * 2**30,
         "driver_cuda": 13010, "cublaslt": 130103, "copy_gb_s": 1000.0, "gemm_tf32_tflop_s": 100.0, "gemm_bf16_tflop_s": 200.0,
         "h2d_gb_s": 50.0, "d2h_gb_s": 40.0, "launch_us": 2.5, "graph_launch_us": 4.25, "graph_us": 33.3}
STEP = {"kind": "step", "batch": 65536, "dim": 128, "products": "tf32", "n_rows": 9, "graph_us": 2000.0, "eager_us": 2100.0,
        "floor_us": 1000.0, "ratio": 2.0, "samples_per_s": 32768000, "whole_samples_per_s": 4096000}
OP = {"kind": "op", "batch": 65536, "dim": 128, "products": "tf32", "op": "bag sum", "graph_us": 30.04, "eager_us": 31.0,
      "floor_bytes_us": 15.02, "floor_flop_us": None, "floor_us": 15.02, "ratio": 2.0}
ENCODE = {"kind": "encode", "batch": 65536, "dim": 128, "products": "tf32", "codec": "onebit", "graph_us": 50.0, "eager_us": 60.0,
          "floor_bytes_us": 25.0, "ratio": 2.0, "out_bytes": 3 * 2**20, "whole_samples_per_s": 5120000}
PRODUCT = {"products": "tf32", "product": "dx", "m": 1024, "n": 65536, "k": 512, "operands": "NN", "epilogue": "none", "first_us": 400.0,
           "best_us": 300.0, "best_choice": 2, "tflop_s": 229.06, "kernel": "a", "best_kernel": "b"}
RESULTS = {"facts.json", "products.jsonl", "bench.jsonl", "torch.jsonl", "end_to_end.jsonl", "phases.jsonl", "table.md", "logs.tar.gz"}
DEDUP = {"kind": "dedup", "batch": 65536, "keys": 1703936, "rows": 181159, "cpu_us": 19570.1, "gpu_us": 800.2}
PARTS = {"kind": "parts", "batch": 65536, "rows": 181159, "dim": 128, "parts": 2, "rows_of_parts": 230000, "divide_us": 31000.4, "add_us": 21000.0}
PROJECT = {"kind": "project", "pass": "backward", "batch": 65536, "rows": 181159, "from": 16, "dim": 128, "tables": 4, "us": 123.4}
PASSED = {"phase": "facts", "result": "passed", "seconds": 3, "why": ""}


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def report(folder, expect=0):
    got = subprocess.run([sys.executable, str(ROOT / "tests/gpu/report.py"), str(folder)], capture_output=True, text=True, timeout=300)
    assert got.returncode == expect, got.stderr
    return got.stdout if not expect else got.stderr


def torch_line(way, rate, **more):
    return {"batch": 65536, "dim": 128, "products": "tf32", "way": way, "samples_per_s": rate, **more}


# --- the table ---

def test_the_table_says_what_was_measured(tmp_path):
    write(tmp_path / "phases.jsonl", [PASSED])
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    write(tmp_path / "bench.jsonl", [OP, STEP, ENCODE, DEDUP, PROJECT, PARTS])
    write(tmp_path / "products.jsonl", [PRODUCT, {**{key: PRODUCT[key] for key in list(PRODUCT)[:7]}, "first_us": None}])
    write(tmp_path / "torch.jsonl", [torch_line("eager", 4e6), torch_line("graph", 8.192e6, lookup="bag"), torch_line("eager", 9e9, dim=16)])
    write(tmp_path / "end_to_end.jsonl", [{"case": "GPU", "shards": 8, "result": {"steady_samples_per_s": 123456.7, "samples_per_s": 9, "bottleneck": "pull"}},
                                          {"case": "broken", "shards": 8, "why": "psworker ended with status 1"},
                                          *({"case": f"AUC, {device}", "device": device, "seed": seed, "shards": 8, "result": {"auc": auc}}
                                            for device, seed, auc in (("cuda", 1, 0.7501), ("cpu", 1, 0.75), ("cuda", 2, 0.7)))])
    text = report(tmp_path)
    assert "2001-02-03 04:05 UTC: Some GPU, 7 SMs, compute capability 9.0, 8 GiB; driver for CUDA 13.1, cublasLt 13.1.3." in text
    assert "| 65536 | 128 | tf32 | 2,000 | 2,100 | 1,000 | 2.00 | 32.77 | 4.10 | 8.19 (graph bag) | 4.00 |" in text
    assert "| bag sum | 30.0 | 31.0 | 15.0 | - | 2.00 |" in text
    assert "| tf32 | dx | 1024 x 65536 x 512 | NN | none | 400.0 | 300.0 | 229 | b |" in text
    assert "| tf32 | dx | 1024 x 65536 x 512 | NN | none | - | - | - | - |" in text
    assert "| 65536 | 128 | onebit | 50.0 | 60.0 | 25.0 | 2.00 | 3.0 | 5.12 |" in text
    assert "Duplicates among 1,703,936 keys (181,159 rows) removed: 800 us with copies, 19,570 us on a core." in text
    assert "65,536 samples in 2 parts (230,000 rows of 181,159): divided in 31,000 us, gradients added in 21,000 us on a core." in text
    assert "181,159 rows of 4 tables projected from 16 to 128, backward: 123.4 us." in text
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


def test_a_truncated_line_is_no_result(tmp_path):
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
        self.programs, self.tools, self.out, self.build = (folder / name for name in ("programs", "tools", "out", "build"))
        self.env = {}
        for unit in UNITS:
            self.program(f"unit/test_{unit}", "exit 0")
        self.program("gpu/facts", f"echo '{json.dumps(FACTS)}' >$1")
        self.program("gpu/bench", f"[ $1 = digest ] && echo 1234 || {{ echo '{json.dumps(STEP)}' >$3/bench.jsonl; touch $3/rows-9.u32; }}")
        self.program("gpu/products", f"echo '{json.dumps(PRODUCT)}' >$1")
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

    def run(self, lack="", seconds=400):
        """The exit status, what is said, and result and reason by phase."""
        env = {**ENVIRONMENT, "OUT": str(self.out), "GPU_CHECK_SECONDS": str(seconds), "PATH": f"{self.tools}:{os.environ['PATH']}", **self.env}
        got = subprocess.run([str(ROOT / "tests/gpu/check.sh"), "make", str(self.build), lack, str(self.programs)], env=env,
                             capture_output=True, text=True, timeout=500)
        path = self.out / "phases.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return got.returncode, got.stdout + got.stderr, {line["phase"]: (line["result"], line["why"]) for line in lines}

    def check(self, expect, lack=""):
        """What is said, and result and reason by phase."""
        status, said, phases = self.run(lack)
        assert status == expect, said
        return said, phases

    def check_stopped(self, phase, expect, seconds, until=""):
        """The same with so little time that the phase, which does not end, is cut; with more, where a slow machine did not get that far."""
        for total in (seconds, 2 * seconds, 5 * seconds):
            status, said, phases = self.run(seconds=total)
            if phases.get(phase, ("skipped", ""))[0] == "cut" and phases[phase][1].endswith(until):
                break
        assert phases[phase][0] == "cut" and phases[phase][1].endswith(until), said
        assert status == expect, said
        return said, phases


@pytest.fixture
def stand(tmp_path):
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    return Stand(tmp_path)


def test_phases_that_a_machine_cannot_do_are_skipped_with_the_reason(stand):
    said, phases = stand.check(0)
    assert all(phases[name] == ("passed", "") for name in ("facts", "build", "three-runs", "bench")), phases
    assert phases["tests"] == ("passed", "passed: " + ", ".join(UNITS))
    assert phases["torch"][0] == "skipped" and phases["torch"][1].startswith("torch_step.py: ")
    why = "psd cannot be built here: its libraries are missing, and PSD_BIN names no folder with psd and psworker"
    assert phases["build-psd"] == ("skipped", why) and phases["auc"] == phases["end-to-end"] == ("skipped", "there is no psd")
    assert phases["racecheck"] == ("skipped", "compute-sanitizer does not support this device")
    assert said.index("| 65536 | 128 | tf32 |") < said.index("| synccheck | skipped |")
    assert (stand.out / "table.md").read_text().startswith("# gpu-check")
    assert {path.name for path in stand.out.iterdir()} == RESULTS - {"torch.jsonl", "end_to_end.jsonl"}
    with tarfile.open(stand.out / "logs.tar.gz") as logs:
        assert {"logs/facts.log", "logs/tests.log"} <= set(logs.getnames())


def test_without_a_gpu_it_ends_with_one_sentence(stand):
    stand.program("gpu/facts", "echo 'facts: no GPU: no \"CUDA\"-capable device (100)' >&2; exit 1")
    said, phases = stand.check(1)
    assert phases["facts"] == ("failed", "facts: no GPU: no CUDA-capable device (100)")
    assert re.fullmatch(r"gpu-check: facts: failed, \d+ s: facts: no GPU: no CUDA-capable device \(100\)\n", said), said
    assert list(phases) == ["build-facts", "facts"]


def gpu_tests(stand, nvcc):
    """make gpu-tests, with compilers that stand in for the real ones: what they make finds no GPU."""
    said = "echo 'facts: no GPU: there is no NVIDIA driver' >&2; exit 1"
    take = 'while [ $# -gt 0 ]; do [ "$1" != -o ] || out=$2; shift; done;'
    stand.tool("toolkit/bin/nvcc", f"{take} touch $out")
    stand.tool("toolkit/lib64/libcublasLt.so", "")
    stand.tool("c++", f"""{take} printf '%s\\n' '#!/bin/bash' "{said}" >$out; chmod +x $out""")
    got = subprocess.run(["make", "gpu-tests", f"BUILD={stand.out}", f"NVCC={nvcc}", f"CXX={stand.tools / 'c++'}"], cwd=ROOT,
                         capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    assert got.returncode == 2
    return got.stdout, got.stderr.splitlines()


def test_make_gpu_tests_without_a_gpu_builds_no_test_and_ends_with_one_sentence(stand):
    out, err = gpu_tests(stand, stand.tools / "toolkit/bin/nvcc")
    assert err[0] == "facts: no GPU: there is no NVIDIA driver" and len(err) == 2 and err[1].startswith("make: ***")
    assert "facts" in out and "unit" not in out


def test_make_gpu_tests_without_nvcc_says_so(stand):
    out, err = gpu_tests(stand, "")
    assert err[0] == "gpu-tests: there is no nvcc, so nothing for a GPU can be built" and not out


def plan_of_facts(stand, *words, **more):
    """The commands by which make would build the facts with the stand's toolkit."""
    stand.tool("toolkit/bin/nvcc", "exit 1")
    got = subprocess.run(["make", "-n", f"BUILD={stand.out}", f"NVCC={stand.tools / 'toolkit/bin/nvcc'}", *words, f"{stand.out}/cuda/gpu/facts"],
                         cwd=ROOT, capture_output=True, text=True, timeout=300, env={**ENVIRONMENT, **more})
    assert got.returncode == 0, got.stderr
    return got.stdout


def test_programs_find_cublaslt_again_where_they_were_linked(stand):
    stand.tool("toolkit/lib64/libcublasLt.so", "")
    plan = plan_of_facts(stand)
    lib = stand.tools / "toolkit/lib64"
    assert f"-Wl,-rpath,{lib} " in plan and f" {lib}/libcublasLt.so " in plan and "-Wl,-rpath,/usr/local/cuda/lib64 " in plan


@pytest.mark.parametrize("has_header", [True, False])
def test_a_toolkit_without_cublaslt_takes_that_of_a_wheel_that_has_the_header(stand, has_header):
    wheel = stand.tools / "site/nvidia/cublas"
    stand.script(wheel / "lib/libcublasLt.so.13", "")
    stand.script(wheel / "include" / ("cublasLt.h" if has_header else "other.h"), "")
    plan = plan_of_facts(stand, PYTHONPATH=str(stand.tools / "site"))
    assert (f"-Wl,-rpath,{wheel}/lib " in plan) == has_header
    assert (f" {wheel}/lib/libcublasLt.so.13 " in plan) == has_header
    assert (f"-I{wheel}/include " in plan) == has_header


def test_a_warning_ends_a_build_but_where_the_compiler_is_unknown(stand):
    stand.tool("toolkit/lib64/libcublasLt.so", "")
    assert "-Werror" in plan_of_facts(stand) and "-Werror" not in plan_of_facts(stand, "WERROR=")


def test_all_that_is_built_for_a_gpu_is_run():
    built = re.search(r"^GPU_TESTS = .*test_%,(.*)\)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert sorted(built) == sorted(UNITS)


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
    result, why = phases["tests"]
    assert result == "failed" and why.startswith("these failed: test_sums; passed: ") and (stand.out / "ran").exists(), phases["tests"]


CARRIED_PSWORKER = """
line='"samples":10,"seconds":2'
case $1 in
--version) ;;
synth) while [ "$1" != --output ]; do shift; done; seq 10 >$2 ;;
train) echo "{\\"event\\":\\"result\\",\\"auc\\":0.5,\\"library\\":\\"$LD_LIBRARY_PATH\\",$line}" ;;
esac"""


def test_psd_and_psworker_may_be_carried(stand, tmp_path):
    carried = tmp_path / "carried"
    stand.script(carried / "psworker", CARRIED_PSWORKER)
    stand.script(carried / "psd", "[ $1 = --version ] && exit; echo 'psd ready: listening on 127.0.0.1:9, now' >&2; exec sleep 100")
    stand.env = {"PSD_BIN": str(carried), "PS_SHARED": str(tmp_path)}
    _, phases = stand.check(0)
    assert phases["build-psd"] == phases["end-to-end"] == phases["auc"] == ("passed", "")
    lines = [json.loads(line) for line in (stand.out / "end_to_end.jsonl").read_text().splitlines()]
    local = [line["result"]["library"] for line in lines if line["case"].startswith("AUC") or "in this process" in line["case"]]
    assert len(local) == 7 and all(library.split(":")[0] == f"{carried}/lib" for library in local)


def test_carried_programs_that_do_not_run_are_named(stand, tmp_path):
    stand.script(tmp_path / "carried/psd", "exit 127")
    stand.env = {"PSD_BIN": str(tmp_path / "carried")}
    _, phases = stand.check(1)
    assert phases["build-psd"][0] == "failed" and phases["build-psd"][1].startswith(f"{tmp_path}/carried/psd does not run here")


# What stands for compute-sanitizer runs the program, as that does, and says more.
RUNS = """[ $1 != --help ] || { echo '--kernel-name-exclude'; exit; }
echo '========= COMPUTE-SANITIZER'; tool=$2; words="$*"; program=${!#}; echo 'a line of the program'
"""
CLEAN = "echo '========= ERROR SUMMARY: 0 errors'"


def finding(kernel):
    return f"""echo '========= Uninitialized __global__ memory read of size 4 bytes'; echo '=========     at {kernel}(float *)+0x70'
echo '=========     by thread (31,0,0) in block (1,0,0)'; echo '=========     Host Frame: cublasLtMatmul [0x1] in libcublasLt.so.13'
echo '========= ERROR SUMMARY: 1 error'; exit 9"""


def test_a_sanitizer_that_finds_something_fails_the_check(stand):
    stand.tool("compute-sanitizer", RUNS + f"[ $tool != initcheck ] || [[ $program != *test_bags ]] || {{ {finding('bag_sum')}; }}\n" + CLEAN)
    _, phases = stand.check(1)
    assert phases["initcheck"] == ("failed", "initcheck found something in bags: Uninitialized __global__ memory read of size 4 bytes "
                                             "at bag_sum(float *)+0x70; passed: fp32-steps, encode")
    units = [unit for unit in UNITS if unit not in ("encode", "buffer_sets", "gemm", "model", "model_bf16", "device_push", "data_parallel")]
    all_but_long = [unit for unit in UNITS if unit not in ("buffer_sets", "model", "model_bf16", "device_push", "data_parallel")]
    assert phases["memcheck"] == ("passed", "passed: " + ", ".join(["fp32-steps", "tf32-steps", "bf16-steps", "buffer_sets", *all_but_long]))
    new = ["interact", "bf16", "update", "decode"]  # racecheck reaches its limit, and has not met these yet
    rest = [unit for unit in units if unit not in new]
    assert phases["racecheck"] == ("passed", "passed: " + ", ".join([*new, "fp32-steps", "tf32-steps", "encode", *rest, "buffer_sets", "gemm"]))


def test_racecheck_and_initcheck_take_tests_without_bf16(stand):
    stand.tool("compute-sanitizer", RUNS + f'echo "$program ${{RIG_WITHOUT_BF16:-}}" >>{stand.tools}/$tool\n' + CLEAN)
    stand.check(0)
    for tool, without in (("memcheck", ""), ("racecheck", "1"), ("initcheck", "1"), ("synccheck", "")):
        lines = (stand.tools / tool).read_text().splitlines()
        assert f"{stand.programs}/unit/test_gemm {without}" in lines
        assert ("bf16 " in lines) == (not without)


def test_a_race_is_reported_in_one_sentence(stand):
    race = "Error: Race reported between Write access at topk(float *)+0x1 and Read access at topk(float *)+0x2 [8 hazards]"
    stand.tool("compute-sanitizer", RUNS + f"[ $tool != racecheck ] || {{ echo '========= {race}'; exit 9; }}\n" + CLEAN)
    _, phases = stand.check(1)
    assert phases["racecheck"] == ("failed", f"racecheck found something in interact: {race}")


@pytest.mark.parametrize("kernel", ["nvjet_hsh_64x8", "cublasLt::splitKreduce_kernel", "void cutlass::Kernel2"])
def test_what_initcheck_finds_in_the_librarys_kernels_does_not_count(stand, kernel):
    stand.tool("compute-sanitizer", RUNS + f"[ $tool != initcheck ] || {{ {finding(kernel)}; }}\n" + CLEAN)
    _, phases = stand.check(0)
    assert phases["initcheck"][0] == "passed"


def test_racecheck_leaves_the_librarys_kernels_out_and_initcheck_sees_them(stand):
    stand.tool("compute-sanitizer", RUNS + f"echo $words >>{stand.tools}/$tool\n" + CLEAN)
    stand.check(0)
    assert "--kernel-name-exclude kns=nvjet,kns=" in (stand.tools / "racecheck").read_text()
    assert "exclude" not in (stand.tools / "initcheck").read_text()


def test_no_kernel_of_ours_is_taken_for_the_librarys():
    names = re.search(r'library="(.*)"', (ROOT / "tests/gpu/sanitizer.sh").read_text())[1].split()
    budget = [line for line in (ROOT / "tests/gpu/budget.txt").read_text().splitlines() if not line.startswith("#")]
    assert names and budget and not [line for line in budget if any(name in line.split("  ")[-1] for name in names)]


def test_a_sanitizer_that_runs_nothing_does_not_pass(stand):
    stand.tool("compute-sanitizer", f"echo '========= COMPUTE-SANITIZER'; {CLEAN}")
    _, phases = stand.check(1)
    assert phases["memcheck"] == ("failed", "compute-sanitizer has not run fp32-steps: ========= ERROR SUMMARY: 0 errors")


def test_a_program_that_fails_under_a_sanitizer_fails_the_check(stand):
    stand.tool("compute-sanitizer", RUNS + "echo 'memory of this kind is not supported'; exit 1")
    _, phases = stand.check(1)
    assert phases["synccheck"] == ("failed", "synccheck found something in fp32-steps: it ended with status 1")


def test_a_sanitizer_that_is_stopped_fails_the_check_and_says_what_passed(stand):
    stand.program("unit/test_bags", "exit 0")
    stand.tool("compute-sanitizer", RUNS + "[[ $program != *test_bags ]] || exec sleep 100\n" + CLEAN)
    stand.check_stopped("memcheck", 1, seconds=15, until="; passed: fp32-steps, tf32-steps, bf16-steps, buffer_sets")


# --- end to end ---

def test_every_setting_of_a_case_end_to_end_does_something(tmp_path):
    out = tmp_path / "end_to_end.jsonl"
    got = subprocess.run([sys.executable, ROOT / "tests/gpu/end_to_end.py", "--quick", "--device", "cpu", BIN, out], capture_output=True,
                         text=True, timeout=300)
    assert got.returncode == 0, got.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 16 and not [line["why"] for line in lines if "why" in line]
    speeds = [line["result"]["steady_samples_per_s"] for line in lines if not line["case"].startswith("AUC")]
    assert len(speeds) == 10 and all(speed > 0 for speed in speeds)
    assert all(0 <= line["result"]["auc"] <= 1 for line in lines if line["case"].startswith("AUC"))


# --- cut ---

def test_a_phase_that_takes_too_long_is_stopped_and_one_without_time_left_is_skipped(stand):
    stand.program("gpu/bench", f"[ $1 = digest ] && echo 1 && exit; echo '{json.dumps(STEP)}' >$3/bench.jsonl; exec sleep 100")
    said, phases = stand.check_stopped("bench", 0, seconds=8)
    assert phases["torch"] == phases["build-psd"] == ("skipped", "there was no time left")
    assert "| 65536 | 128 | tf32 |" in said


def test_parts_of_it_may_be_asked_for(stand):
    stand.env = {"GPU_CHECK_PARTS": "speed"}
    _, phases = stand.check(0)
    assert {"facts", "products", "bench", "torch"} <= set(phases) and not {"tests", "memcheck", "build-psd"} & set(phases)
    stand.env = {"GPU_CHECK_PARTS": "all"}
    said, _ = stand.check(1)
    assert "GPU_CHECK_PARTS: all is none of correctness, speed, auc, end-to-end" in said


def test_tests_that_hang_fail_the_check(stand):
    stand.program("unit/test_buffer_sets", "exec sleep 100")
    _, phases = stand.check_stopped("tests", 1, seconds=6)
    assert phases["three-runs"][0] == "skipped"
