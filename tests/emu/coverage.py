#!/usr/bin/env python3
"""What the tests on the emulated device run of the kernels: lines of worker/cuda/*.cu and the headers they share, by file.

usage: coverage.py BUILD_DIR [--least PERCENT]
Runs every program under BUILD_DIR/unit/cuda, then gcov. Prints a line for each file and the lines that no test ran, and the
CPU's time of the programs; exits 1 if a test fails or less than PERCENT (95) of all lines were run.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import resource
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(program):
    """Of what fails call by call a sixth: the unit tests have all of it."""
    return subprocess.run([program], env={"PS_SHARE": "6", **os.environ}, capture_output=True, text=True, timeout=600)


def run_tests(build):
    programs = sorted(p for p in glob.glob(f"{build}/unit/cuda/test_*") if os.access(p, os.X_OK))
    if not programs:
        sys.exit(f"no tests under {build}/unit/cuda: run `make cuda-coverage`")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for program, done in zip(programs, pool.map(run, programs)):
            if done.returncode:
                sys.exit(f"{program} failed:\n{done.stdout}{done.stderr}")
    return len(programs)


def of_kernels(path):
    path = os.path.relpath(os.path.join(ROOT, path), ROOT)
    return path if path.startswith("worker/cuda/") and path.endswith((".cu", ".h")) else None


def counts(build):
    """{file: {line: times}}, the most of all objects that a header stands in."""
    lines = {}
    for data in sorted(glob.glob(f"{build}/emu/worker/cuda/*.cu.gcda")):
        said = subprocess.run(["gcov", "--json-format", "--stdout", data], capture_output=True, text=True, check=True).stdout
        for text in said.splitlines():
            for file in json.loads(text)["files"]:
                name = of_kernels(file["file"])
                for line in file["lines"] if name else []:
                    of_file = lines.setdefault(name, {})
                    of_file[line["line_number"]] = max(of_file.get(line["line_number"], 0), line["count"])
    return lines


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--least", type=float, default=95.0)
    args = p.parse_args()
    for stale in glob.glob(f"{args.build}/**/*.gcda", recursive=True):
        os.remove(stale)
    n_programs = run_tests(args.build)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    n_run = n_all = 0
    for name, lines in sorted(counts(args.build).items()):
        missed = sorted(n for n, times in lines.items() if not times)
        n_run += len(lines) - len(missed)
        n_all += len(lines)
        print(f"{100 * (len(lines) - len(missed)) / len(lines):6.1f} %  {name}" + (f"   not run: {missed}" if missed else ""))
    percent = 100 * n_run / max(n_all, 1)
    print(f"{percent:6.1f} %  of {n_all} lines of kernels, by {n_programs} programs in {used.ru_utime + used.ru_stime:.0f} s of one core")
    sys.exit(percent < args.least)


if __name__ == "__main__":
    main()
