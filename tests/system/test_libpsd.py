"""libpsd as it is installed: a program of a stranger is built against it, with and without the shared library, and runs against a psd."""

import ctypes
import os
import pathlib
import re
import subprocess
import time

import pytest
from conftest import BIN, ROOT

LIB = BIN.parent / "lib"
PAGE = ROOT / "deploy/docs/c-library.md"
NAMES = re.findall(r"^ +(psd_\w+);$", (ROOT / "worker/libpsd/libpsd.map").read_text(), re.M)
IS_PLAIN = BIN.parent.name == "release"


def run(*args, status=0, **more):
    got = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **more)
    assert got.returncode == status, f"{args}: {got.returncode}\n{got.stdout}{got.stderr}"
    return got.stdout + got.stderr


@pytest.fixture
def root(tmp_path):
    """Installed below a staged root."""
    run(ROOT / "deploy/install.sh", BIN, tmp_path / "root", "/usr")
    return tmp_path / "root"


def pkg_config(root, *words):
    folder, = root.glob("usr/lib/**/pkgconfig")
    more = {"PKG_CONFIG_PATH": str(folder), "PKG_CONFIG_SYSROOT_DIR": ""}
    flags = run("pkg-config", f"--define-variable=prefix={root}/usr", f"--define-variable=libdir={folder.parent}", *words, "psd",
                env={**os.environ, **more})
    return folder.parent, flags.split()


def example(tmp_path, number=0):
    source = tmp_path / f"demo{number}.c"
    source.write_text(re.findall(r"```c\n(.*?)```", PAGE.read_text(), re.S)[number])
    return source


EXPECTED = "3 keys, 100 steps: the first weight is 1.00\n"


@pytest.mark.skipif(not IS_PLAIN, reason="a sanitizer's library needs a sanitizer's program")
def test_the_example_is_built_with_pkg_config_and_runs(root, tmp_path, start_psd):
    libdir, flags = pkg_config(root, "--cflags", "--libs")
    assert re.search(EXPECTED, PAGE.read_text())
    run("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "demo", example(tmp_path), *flags)
    url = f"psd://127.0.0.1:{start_psd('--shards', '2').port}/demo"
    assert run(tmp_path / "demo", url, env={**os.environ, "LD_LIBRARY_PATH": str(libdir)}) == EXPECTED
    assert "libpsd.so.1" in run("readelf", "-d", tmp_path / "demo")
    assert "no psd://" in run(tmp_path / "demo", "7070", status=1, env={**os.environ, "LD_LIBRARY_PATH": str(libdir)})


@pytest.mark.skipif(not IS_PLAIN, reason="a sanitizer's library needs a sanitizer's program")
def test_the_second_example_copies_a_table_with_its_state(root, tmp_path, start_psd):
    libdir, flags = pkg_config(root, "--cflags", "--libs")
    for number, name in enumerate(["demo", "copy"]):
        run("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / name, example(tmp_path, number), *flags)
    env = {**os.environ, "LD_LIBRARY_PATH": str(libdir)}
    here, there = (start_psd("--shards", n, "--data-dir", str(tmp_path / n)) for n in ["2", "3"])
    urls = [f"psd://127.0.0.1:{psd.port}/demo" for psd in (here, there)]
    assert run(tmp_path / "demo", urls[0], env=env) == EXPECTED
    assert "no table is called demo/item" in run(tmp_path / "copy", *urls, "item", env=env, status=1)
    arrays = tmp_path / "arrays"
    assert here.stop() == 0
    run(BIN / "psctl", "export", tmp_path / "2", "--out", arrays, "--state")
    run(BIN / "psctl", "import", arrays, "--server", f"127.0.0.1:{there.port}", "--make", "--weights")  # state begins anew
    here = start_psd("--shards", "2", "--data-dir", str(tmp_path / "2"))
    assert run(tmp_path / "copy", f"psd://127.0.0.1:{here.port}/demo", urls[1], "item", env=env) == "3 rows\n"
    assert there.stop() == 0
    run(BIN / "psctl", "export", tmp_path / "3", "--out", tmp_path / "again", "--state")
    before, after = arrays.read_bytes(), (tmp_path / "again").read_bytes()
    assert before[-216:] == after[-216:]  # 3 keys, and of 8 floats each weights and sums
    assert b'\\"steps\\":100' in before and b'\\"steps\\":100' in after


@pytest.mark.skipif(not IS_PLAIN, reason="a sanitizer's library needs a sanitizer's program")
def test_the_archive_links_alone_and_clashes_with_no_name_of_the_program(root, tmp_path, start_psd):
    _, flags = pkg_config(root, "--cflags", "--libs", "--static")
    source = example(tmp_path)
    # Names that the sources of libpsd have, too.
    own = "".join(f"int {name}(void); int {name}(void) {{ return 7; }}\n" for name in ["ps_open", "request_free", "memory_alloc", "err_set"])
    source.write_text(source.read_text() + own)
    run("cc", "-std=c99", "-o", tmp_path / "demo", source, *["-l:libpsd.a" if f == "-lpsd" else f for f in flags])
    assert "libpsd" not in run("readelf", "-d", tmp_path / "demo")
    url = f"psd://127.0.0.1:{start_psd().port}/demo"
    assert run(tmp_path / "demo", url) == EXPECTED


@pytest.mark.parametrize("compiler", ["cc -std=c99 -x c", "cc -std=c17 -x c", "c++ -std=c++11 -x c++", "c++ -std=c++20 -x c++"])
def test_the_header_is_c_and_cxx(compiler):
    run(*compiler.split(), "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", ROOT / "worker/libpsd/psd.h")


@pytest.mark.skipif(not IS_PLAIN, reason="sanitizers export names")
def test_only_its_functions_are_exported():
    shared = re.findall(r" (\S+)@@PSD_1$", run("nm", "-D", "--defined-only", LIB / "libpsd.so.1"), re.M)
    archive = re.findall(r" [A-Z] (\S+)$", run("nm", "--defined-only", "--extern-only", LIB / "libpsd.a"), re.M)
    assert sorted(shared) == sorted(archive) == sorted(NAMES)
    assert "[libpsd.so.1]" in run("readelf", "-d", LIB / "libpsd.so.1")
    for name in ["inih", "cjson", "systemd", "microhttpd", "blas"]:
        assert name not in run("readelf", "-d", LIB / "libpsd.so.1")


def test_every_function_has_a_man_page(root):
    for name in NAMES:
        assert (root / f"usr/share/man/man3/{name}.3").read_text() == ".so man3/libpsd.3\n"
    page = root / "usr/share/man/man3/libpsd.3"
    got = run("groff", "-man", "-Tutf8", "-ww", "-P-c", page)
    assert "warning" not in got
    plain = re.sub(r".\x08", "", got)
    for name in NAMES:
        assert f"{name}(" in plain


@pytest.fixture(scope="module")
def library():
    if not IS_PLAIN:
        pytest.skip("a sanitizer's library needs a sanitizer's program")
    lib = ctypes.CDLL(str(LIB / "libpsd.so.1"))
    lib.psd_key.restype = lib.psd_seed.restype = ctypes.c_uint64
    lib.psd_error.restype = ctypes.c_char_p
    return lib


def test_keys_are_psworkers(library):
    for token in ["", "x", "68fd1e64", "a longer token of more than sixteen bytes", "\N{SNOWMAN}"]:
        for column in ["C1", "C7", "C26"]:
            out = run(BIN / "psworker", "key", column, token, "--format", "criteo")
            seed, data = library.psd_seed(column.encode()), token.encode()
            assert int(out) == library.psd_key(ctypes.c_uint64(seed), data, ctypes.c_size_t(len(data)))


def test_no_thread_and_no_descriptor_stays(library, start_psd):
    url = f"psd://127.0.0.1:{start_psd().port}/j".encode()

    def counted():
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    counts = [counted()]
    for _ in range(20):
        handle, why = ctypes.c_void_p(), ctypes.create_string_buffer(256)
        assert library.psd_open(ctypes.byref(handle), url, b"", why) == 0, why.value
        assert counted() > counts[-1]
        assert library.psd_close(handle) == 0
        counts.append(counted())
    # libuv keeps one pipe for all loops of a process.
    assert counts[1] <= (counts[0][0], counts[0][1] + 2)
    assert counts[-1] == counts[1]


def test_calls_at_random_end_no_process(start_psd):
    """Under AddressSanitizer, with three threads, and without memory now and then. PS_SEED repeats a run."""
    build = os.path.relpath(os.environ.get("PS_BUILD", BIN.parents[1]), ROOT)  # as in the lists of dependencies
    program = f"{build}/asan/bin/random-calls"
    made = subprocess.run(["make", "-s", "--no-print-directory", f"BUILD={build}", "VARIANT=asan", "-j2", program], cwd=ROOT,
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    seed = os.environ.get("PS_SEED", "1")
    urls = [f"psd://127.0.0.1:{start_psd('--shards', n).port}" for n in ["1", "3"]]
    got = run(ROOT / program, seed, 15, *urls)
    counts = re.search(r"(\d+) handles, (\d+) calls, (\d+) failed, .* (\d+) allocations failed", got)
    assert counts and int(counts[4]) > 10, got


@pytest.mark.skipif(not IS_PLAIN, reason="a sanitizer needs address space of its own")
def test_without_memory_the_process_lives_and_pushes_arrive_once(start_psd, tmp_path):
    """The address space is full, also while the psd restarts."""
    build = os.path.relpath(os.environ.get("PS_BUILD", BIN.parents[1]), ROOT)
    run("make", "-s", "--no-print-directory", f"BUILD={build}", f"{build}/release/bin/starved", cwd=ROOT)
    data = str(tmp_path / "data")
    psd = start_psd("--shards", "2", "--data-dir", data)
    program = subprocess.Popen([ROOT / build / "release/bin/starved", f"psd://127.0.0.1:{psd.port}/j"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "starved\n", program.stderr.read()
    assert psd.stop() == 0
    start_psd("--shards", "2", "--listen", f"127.0.0.1:{psd.port}", "--data-dir", data)
    time.sleep(0.5)
    out, errors = program.communicate("\n", timeout=120)
    assert program.returncode == 0, errors
    assert int(re.fullmatch(r"(\d+) calls found no memory\n", out)[1]) > 100
