"""Earlier programs, built from the repository's own history, once, under build/before. A test is skipped where the history lacks them, but not in
CI."""
import fcntl
import os
import subprocess

import pytest
from training import ROOT

WITHOUT_STANDBYS = "4935f68de7b21a0fb65f4c347fa77c9a47a23af9"
WITHOUT_LEARNED_RECORDS = "786291336d9fd3d1fdb34ca119a1538ca8710df4"


def make(source, commit, programs):
    if not source.exists():
        half = source.with_suffix(".half")
        subprocess.run(["rm", "-rf", half], check=True)
        half.mkdir(parents=True)
        tree = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", half], input=tree, check=True)
        half.rename(source)
    # PS_BIN's variant does not matter: the programs speak to each other. Little optimization takes a third less time to compile.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "VARIANT", "BUILD")}
    done = subprocess.run(["make", "-j2", "flags.release=-O1 -march=x86-64-v2", "WERROR=", *(f"build/release/bin/{name}" for name in programs)],
                          cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return source / "build/release/bin"


def build(commit, *programs):
    """The folder of that commit's programs."""
    if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False).returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the history has no commit {commit[:7]}")
        pytest.skip(f"the history has no commit {commit[:7]}")
    folder = ROOT / "build/before"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"lock-{commit[:12]}", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side build it once
        return make(folder / commit[:12], commit, programs)
