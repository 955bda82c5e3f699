#!/usr/bin/env python3
"""Registers of every kernel, held to budget.txt beside this file: more than there mean fewer warps at work.

usage: budget.py NVCC [NVCC FLAGS...]       compare; exit 1 when a kernel takes more, spills, or is not in the list
       WRITE=1 budget.py NVCC [FLAGS...]    write the list anew
Without nvcc (an empty NVCC) it says so and exits 0: nothing is measured.
"""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIST = os.path.join(HERE, "budget.txt")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'")
USED = re.compile(r"Used (\d+) registers")


def demangled(names):
    said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [re.sub(r"^void |\(.*", "", line) for line in said.splitlines()]


def compile_one(nvcc, flags, path):
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([nvcc, *flags, "-Xptxas", "-v", "-c", "-o", os.path.join(folder, "o"), os.path.relpath(path, ROOT)], cwd=ROOT,
                              capture_output=True, text=True)


def registers(nvcc, flags):
    """{(arch, file, kernel): registers}; the compiler itself fails on spills."""
    found = {}
    paths = sorted(glob.glob(os.path.join(ROOT, "worker/cuda/*.cu")))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda path: compile_one(nvcc, flags, path), paths))
    for path, said in zip(paths, compiled):
        if said.returncode:
            sys.exit(f"{path}:\n{said.stdout}{said.stderr}")
        text = said.stdout + said.stderr
        entries = ENTRY.findall(text)
        for (_, arch), kernel, used in zip(entries, demangled([e[0] for e in entries]), USED.findall(text), strict=True):
            found[(arch, os.path.basename(path), kernel)] = int(used)
    return found


def read_list():
    with open(LIST) as f:
        rows = [line.rstrip("\n").split("  ") for line in f if line.strip() and not line.startswith("#")]
    return {(arch, file, kernel): int(used) for used, arch, file, kernel in rows}


def write_list(found):
    with open(LIST, "w") as f:
        f.write("# registers of a thread, architecture, file, kernel: `make cuda-budget` holds every build to these; WRITE=1 writes them\n")
        for key, used in sorted(found.items(), key=lambda item: (item[0][1], item[0][2], item[0][0])):
            f.write("  ".join([str(used), *key]) + "\n")


def main():
    nvcc, *flags = sys.argv[1:] or [""]
    if not nvcc:
        print("no nvcc: registers are not measured")
        return
    found = registers(nvcc, flags)
    if os.environ.get("WRITE"):
        write_list(found)
    budget = read_list()
    wrong = [f"{' '.join(key)}: {used} registers, {budget.get(key, 'none')} in the list" for key, used in sorted(found.items())
             if used > budget.get(key, -1)]
    wrong += [f"{' '.join(key)}: in the list, and nowhere else" for key in sorted(budget.keys() - found.keys())]
    print("\n".join(wrong) or f"{len(found)} kernels (each architecture counted) within their registers, none spills, {max(found.values())} at most")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
