"""The worked examples learn, also as two workers; the README's programs run."""

import os
import re
import subprocess
import sys

import pytest

from places import PACKAGE
from training import free_ports

pytest.importorskip("cffi", reason="cffi is missing: apt-get install python3-cffi")
pytest.importorskip("torch", reason="torch is missing: apt-get install python3-torch")
import psd

EXAMPLES = PACKAGE / "examples"


def start(name, *flags, **env):
    return subprocess.Popen([sys.executable, EXAMPLES / f"{name}.py", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1", **env})


def score(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return float(re.search(r"\d\.\d+", out)[0])


@pytest.mark.parametrize("name, least", [("dlrm", 0.78), ("dcn_v2", 0.78), ("two_tower", 0.5)])
def test_an_example_learns(name, least):
    assert score(start(name)) > least


@pytest.mark.parametrize("name, least", [("dlrm", 0.78), ("dcn_v2", 0.78), ("two_tower", 0.5)])
def test_an_example_learns_as_two_workers(name, least):
    port = free_ports(1)[0]
    with psd.local() as server:
        both = [start(name, "--url", server.url, "--workers", 2, "--rank", rank, "--steps", 150, MASTER_PORT=str(port)) for rank in range(2)]
        assert min([score(p) for p in both]) > least


def test_the_programs_of_the_readmes_run(tmp_path):
    pages = [PACKAGE / "README.md", PACKAGE.parents[1] / "README.md"]
    programs = [p for page in pages for p in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)]
    assert len(programs) == 3
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100,
                              env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        assert done.returncode == 0, done.stderr
