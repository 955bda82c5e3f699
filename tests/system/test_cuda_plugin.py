"""psworker_cuda.so as it is shipped: what it asks of a machine, what it shows, for which GPUs it was made."""

import ctypes
import re
import shutil
import subprocess

import pytest

from conftest import BIN

PLUGIN = BIN / "psworker_cuda.so"

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="psworker_cuda.so is not built: there was no nvcc")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_it_needs_cublaslt_and_the_c_library_alone():
    needed = [line.split("[")[1].rstrip("]") for line in run("readelf", "-d", str(PLUGIN)).splitlines()
              if "(NEEDED)" in line]
    assert [name for name in needed if name.startswith("libcublasLt.so.")], needed
    assert all(name.split(".so")[0] in ("libcublasLt", "libc", "ld-linux-x86-64") for name in needed), needed


def test_it_shows_one_symbol():
    symbols = run("nm", "-D", "--defined-only", str(PLUGIN)).split()
    assert symbols[2::3] == ["psworker_cuda"]


def test_it_is_hardened_as_the_programs_are():
    symbols, rest = run("readelf", "-W", "--dyn-syms", str(PLUGIN)), run("readelf", "-W", "-d", "-l", "-n", str(PLUGIN))
    assert "__stack_chk_fail" in symbols, "no stack protector"
    assert "__snprintf_chk" in symbols, "no FORTIFY"
    assert "GNU_RELRO" in rest and "BIND_NOW" in rest, "no full RELRO"
    assert re.search(r"GNU_STACK.* RW +0x", rest), "an executable stack"
    assert "SHSTK" in rest, "no shadow stack"


def test_another_abi_gets_no_ops():
    try:
        plugin = ctypes.CDLL(str(PLUGIN))
    except OSError as e:
        pytest.skip(f"it cannot be opened here: {e}")
    plugin.psworker_cuda.restype = ctypes.c_void_p
    assert plugin.psworker_cuda(0) is None
    assert any(plugin.psworker_cuda(abi) for abi in range(1, 100))


def test_it_has_code_for_sm_80_and_sm_90_and_what_later_gpus_translate():
    if not shutil.which("cuobjdump"):
        pytest.skip("there is no cuobjdump")
    assert all(f"sm_{arch}" in run("cuobjdump", "--list-elf", str(PLUGIN)) for arch in (80, 90))
    assert "sm_90" in run("cuobjdump", "--list-ptx", str(PLUGIN))
