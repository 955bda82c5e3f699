"""PyTorch's DLRM runs and criteo_trace, in this process and over the wire: tests/golden's programs, which take the worker's own path."""
import os
import subprocess

import pytest
from training import BIN, SHARED, golden, psds, shared  # noqa: F401

PROGRAMS = BIN.parent / "golden"


def run(program, servers=None):
    env = dict(os.environ, PS_SHARED=str(SHARED), PS_GOLDEN=str(golden()))
    env.pop("PS_SERVERS", None)
    if servers:
        env["PS_SERVERS"] = servers
    if not (PROGRAMS / program).exists() and not os.environ.get("CI"):
        pytest.skip(f"{PROGRAMS / program} is not there: `make golden-tests` builds it")
    p = subprocess.run([PROGRAMS / program], env=env, capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-3000:]
    assert "PASSED" in p.stderr + p.stdout


@pytest.mark.parametrize("where", ["local", "wire"])
@pytest.mark.parametrize("program", ["test_golden_dlrm", "test_golden_models", "test_golden_trace"])
def test_training_equals_pytorch(psds, program, where):
    if program == "test_golden_trace":
        shared("data/criteo/criteo_dev_110000.tsv.zst")
    run(program, psds("--shards", 3).address if where == "wire" else None)
