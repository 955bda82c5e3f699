"""psd for NumPy: arrays, waits, errors, processes."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cffi", reason="cffi is missing: apt-get install python3-cffi")
import psd
from places import PACKAGE

KEYS = np.array([3, 5, 9], np.int64)


def test_the_declarations_are_those_of_psd_h():
    made = subprocess.run([sys.executable, "-c", "import make_cdef; print(make_cdef.make_cdef(), end='')"], cwd=PACKAGE, check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    assert made == (PACKAGE / "psd/_cdef.py").read_text(), "psd.h has changed: worker/python/make_cdef.py"


# --- tables ---

def test_rows_come_and_go_in_place(client):
    table = client.table("item", dim=4, optimizer="sgd", lr=0.5)
    assert (table.name, table.dim, table.optimizer, table.lr, table.n_floats) == ("test/item", 4, "sgd", 0.5, 0)
    out = np.empty((3, 4), np.float32)
    first = table.pull(KEYS, out=out)
    assert first.base is out or first is out
    gradients = np.arange(12, dtype=np.float32).reshape(3, 4)
    before = out.copy()
    table.push(KEYS, gradients, tick=True)
    assert client.clock == 1
    np.testing.assert_allclose(table.pull(KEYS), before - 0.5 * gradients, rtol=1e-6)
    assert client.table("item") is table


def test_keys_in_any_order_and_shape(client):
    table = client.table("item", dim=2, optimizer="sgd", lr=1)
    keys = np.array([[9, 3], [5, 9]])
    rows = table.pull(keys)
    assert rows.shape == (2, 2, 2) and (rows[0, 0] == rows[1, 1]).all()
    table.push(keys, np.ones((2, 2, 2), np.float32))  # those of key 9 are summed
    np.testing.assert_allclose(table.pull(keys), rows - [[[2], [1]], [[1], [2]]], rtol=1e-6)
    table.assign([9, 3], np.array([[1, 2], [3, 4]], np.float32))
    np.testing.assert_array_equal(table.pull([3, 9]), [[3, 4], [1, 2]])
    assert table.pull([]).shape == (0, 2)


def test_row_decay_takes_its_share_of_all_rows_at_each_step(client):
    table = client.table("item", dim=1, optimizer="sgd", lr=1, init="zero", row_decay=0.25)
    table.assign([1, 2], np.array([[64], [64]], np.float32))
    for _ in range(3):
        table.push([2], np.array([[1]], np.float32))  # w * 0.75 - 1
    np.testing.assert_allclose(table.pull([1, 2]), [[27], [64 * 0.75**3 - 0.75**2 - 0.75 - 1]], rtol=1e-6)


def test_negative_numbers_are_keys_of_64_bits(client):
    table = client.table("item", dim=1)
    table.assign(np.array([-1]), np.array([[7]], np.float32))
    assert table.pull(np.array([2**64 - 1], np.uint64))[0, 0] == 7


def test_a_dense_table(client):
    table = client.table("dense", floats=10, dim=4, optimizer="sgd", lr=1)
    assert table.n_floats == 10
    assert table.pull(np.arange(3)).shape == (3, 4)


def test_several_tables_and_several_pulls_at_once(client):
    a, b = client.table("a", dim=2), client.table("b", dim=3)
    client.push([(a, [1], np.full((1, 2), 5, np.float32)), (b, [2], np.full((1, 3), 6, np.float32))], assign=True)
    pulls = [client.pull([(a, [1]), (b, [2, 3])]) for _ in range(20)]
    for pull in reversed(pulls):
        rows_a, rows_b = pull.wait(10)
        assert (rows_a == 5).all() and (rows_b[0] == 6).all() and pull.done() and pull.wait()[0] is rows_a


def test_codecs(client):
    table = client.table("item", dim=8, optimizer="sgd", lr=1, init="zero")
    table.push([1], np.full((1, 8), 0.3, np.float32), codec="bf16")
    np.testing.assert_allclose(table.pull([1], codec="fp16"), -0.3, rtol=0.01)
    with pytest.raises(psd.UsageError, match="codec 'fp8' is unknown"):
        table.pull([1], codec="fp8")


def test_a_checkpoint_comes_back(tmp_path):
    with psd.local(tmp_path / "data") as server, psd.connect(server.url, job="j") as c:
        c.table("item", dim=1).assign([1], np.array([[42]], np.float32))
        assert len(c.checkpoint()) == 1
        c.flush(10)
    with psd.local(tmp_path / "data") as server, psd.connect(server.url, job="j", reader=True) as c:
        assert c.table("item").pull([1])[0, 0] == 42


def test_stats_and_notices(client):
    table = client.table("item", dim=1)
    table.pull([1, 2])
    stats = client.stats()
    assert stats["pulls"] == 1 and stats["rows_pulled"] == 2 and stats["n_shards"] == 1
    assert client.notices() == []


# --- keys ---

def test_keys_of_texts_and_numbers():
    assert psd.keys("item", [7, "7", b"7"]).tolist() == psd.keys("item", np.array([7, 7, 7], np.int32)).tolist()
    assert psd.keys("item", ["a"])[0] != psd.keys("user", ["a"])[0]
    assert psd.keys("item", np.array(["a", "bcd"])).tolist() == psd.keys("item", np.array([b"a", b"bcd"])).tolist()
    assert psd.keys("item", [2**64 - 1]) == psd.keys("item", np.array([2**64 - 1], np.uint64)) == psd.keys("item", [str(2**64 - 1)])
    assert psd.keys("item", [["a", "b"]]).shape == (1, 2) and psd.keys("item", []).shape == (0,)
    assert psd.keys("item", [-7, 0]).tolist() == psd.keys("item", ["-7", "0"]).tolist()


@pytest.mark.parametrize("tokens", [[1.5], [None], np.array([np.nan]), [True], [object()]])
def test_what_is_no_token(tokens):
    with pytest.raises(psd.UsageError, match="expected str, bytes or int"):
        psd.keys("item", tokens)


def test_unique():
    ids = np.random.default_rng(1).integers(0, 1000, 5000)
    different, inverse = psd.unique(ids)
    np.testing.assert_array_equal(different, np.unique(ids).astype(np.uint64))
    np.testing.assert_array_equal(different[inverse], ids.astype(np.uint64))


# --- misuse ---

@pytest.mark.parametrize("misuse, error, sentence", [
    (lambda c, t: t.pull(np.array([1.0])), psd.UsageError, "keys are float64; expected int64"),
    (lambda c, t: t.pull([np.nan]), psd.UsageError, "keys are float64"),
    (lambda c, t: t.pull(["a"]), psd.UsageError, r"psd.keys\(\) makes keys of texts"),
    (lambda c, t: t.push([1], np.zeros((1, 3), np.float32)), psd.UsageError, r"shape \[1, 3\]; expected \[1, 4\]"),
    (lambda c, t: t.push([1], np.zeros((1, 4))), psd.UsageError, "float64; expected float32"),
    (lambda c, t: t.pull([1], out=np.zeros((1, 8), np.float32)[:, ::2]), psd.UsageError, "not contiguous"),
    (lambda c, t: t.pull([1], out=np.zeros((2, 4), np.float32)), psd.UsageError, r"out has the shape \[2, 4\]"),
    (lambda c, t: t.pull([2, 1], out=np.zeros((2, 4), np.float32)), psd.UsageError, "do not ascend"),
    (lambda c, t: t.assign([1, 1], np.zeros((2, 4), np.float32)), psd.UsageError, "a key stands twice"),
    (lambda c, t: c.pull([(t, [2, 1])]), psd.UsageError, "ascend"),
    (lambda c, t: c.pull([(t, [[1, 2]])]), psd.UsageError, "expected one dimension"),
    (lambda c, t: c.table("nobody"), psd.NoSuchTable, "nobody"),
    (lambda c, t: c.table("item", dim=5), psd.SpecError, "item"),
    (lambda c, t: c.table("other", dim=2, learning="x"), psd.SettingError, "learning"),
    (lambda c, t: c.table("other", lr=2), psd.UsageError, "no dim"),
    (lambda c, t: pickle.dumps(c), psd.ForkError, "cannot be pickled"),
    (lambda c, t: pickle.dumps(t), psd.ForkError, "cannot be pickled"),
    (lambda c, t: t.pull([1], timeout=-1), psd.UsageError, "expected 0 or more"),
])
def test_misuse_is_one_sentence(client, misuse, error, sentence):
    table = client.table("item", dim=4)
    with pytest.raises(error, match=sentence) as caught:
        misuse(client, table)
    assert "\n" not in str(caught.value)
    table.pull([1])  # nothing is broken


def test_a_gradient_of_nan_is_refused_once(client):
    table = client.table("item", dim=1)
    before = table.pull([1])
    with pytest.raises(psd.NotFiniteError):
        table.push([1], np.array([[np.nan]], np.float32))
        client.flush(10)
    np.testing.assert_array_equal(table.pull([1]), before)


@pytest.mark.parametrize("options, error, sentence", [
    ({"wrong": 1}, psd.SettingError, "wrong"),
    ({"mode": "fast"}, psd.SettingError, "fast"),
    ({"workers": 0}, psd.SettingError, "workers"),
    ({"name": 'two "words" \\'}, None, None),
])
def test_options(server, options, error, sentence):
    if not error:
        psd.connect(server.url, job="j", **options).close()
        return
    with pytest.raises(error, match=sentence):
        psd.connect(server.url, job="j", **options)


def test_no_server():
    began = time.monotonic()
    with pytest.raises(psd.ConnectionLost):
        psd.connect("psd://127.0.0.1:1", job="j", connect_timeout="300ms")
    assert time.monotonic() - began < 5
    with pytest.raises(psd.UsageError, match="names a job already"):
        psd.connect("psd://127.0.0.1:1/a", job="b")


def test_another_number_of_workers(server):
    with psd.connect(server.url, job="j"):
        with pytest.raises(psd.JobError, match="worker"):
            psd.connect(server.url, job="j", rank=1, workers=2, connect_timeout="2s")


def test_a_closed_client(server):
    c = psd.connect(server.url, job="j")
    table, pull = c.table("item", dim=1), None
    pull = c.pull([(table, [1])])
    c.close()
    c.close()
    for call in (lambda: table.pull([1]), pull.wait, c.tick, c.checkpoint, c.notices):
        with pytest.raises(psd.Closed, match="closed"):
            call()


def test_a_reader_pushes_nothing(server):
    with psd.connect(server.url, job="j") as c, psd.connect(server.url, job="j", reader=True) as reader:
        c.table("item", dim=1).assign([1], np.array([[3]], np.float32))
        c.flush()
        table = reader.table("item")
        assert table.pull([1])[0, 0] == 3
        with pytest.raises(psd.Error, match="reader"):
            table.push([1], np.ones((1, 1), np.float32))


# --- waits ---

def parked(url):
    """A pull that waits for a worker that does not come."""
    c = psd.connect(url, job="lock", workers=2, mode="bsp")
    table = c.table("item", dim=1)
    c.tick()
    return c, c.pull([(table, [1])])


def test_a_time_out_leaves_a_pull_under_way(server):
    c, pull = parked(server.url)
    with pytest.raises(psd.Timeout):
        pull.wait(0.05)
    assert not pull.done()
    pull.cancel()
    with pytest.raises(psd.UsageError, match="cancelled"):
        pull.wait()
    c.close()


def test_a_pull_lives_no_longer_than_its_time_out(server):
    with psd.connect(server.url, job="lock", workers=2, mode="bsp", pull_timeout="400ms") as c:
        table, began = c.table("item", dim=1), time.monotonic()
        c.tick()
        pull = c.pull([(table, [1])])
        with pytest.raises(psd.Error):
            pull.wait()
        assert 0.3 < time.monotonic() - began < 5


@pytest.mark.parametrize("call", [lambda c, t: t.pull([1]), lambda c, t: c.flush()])
def test_servers_that_are_gone_are_an_error_in_the_time_that_was_given(call):
    with psd.local() as server:
        c = psd.connect(server.url, job="j", give_up="1s", push_timeout="2s")
        table = c.table("item", dim=1)
        os.kill(server.pid, signal.SIGKILL)
        table.push([1], np.ones((1, 1), np.float32))
        began = time.monotonic()
        with pytest.raises((psd.ConnectionLost, psd.Timeout)) as caught:
            call(c, table)
        assert time.monotonic() - began < 8 and "\n" not in str(caught.value)
        c.close()


def test_close_ends_the_waits_of_other_threads(server):
    c, pull = parked(server.url)
    raised = []

    def wait():
        try:
            pull.wait()
        except psd.Cancelled as e:
            raised.append(e)
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    c.close()
    thread.join(5)
    assert len(raised) == 1


def test_an_interrupt_ends_a_wait_within_a_fifth_of_a_second(server):
    c, pull = parked(server.url)
    for delay in (0.0005, 0.13, 0.31):
        sent = []

        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        timer = threading.Timer(delay, interrupt)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            pull.wait()
            timer.join()
        assert time.monotonic() - sent[0] < 0.2 + 0.3  # a busy machine's share
        timer.join()
    assert not pull.done()
    pull.cancel()
    c.close()


def test_a_handler_may_close_the_client_of_the_call_that_it_interrupts(python):
    program = """
import os, signal, numpy as np, psd
for name in ["push", "table"]:
    with psd.local() as server:
        client = psd.connect(server.url, job="a", window="1M", push_timeout="20s", give_up="20s")
        table, keys, rows = client.table("item", dim=1024), np.arange(1000), np.ones((1000, 1024), np.float32)
        signal.signal(signal.SIGALRM, lambda *_: client.close())
        os.kill(server.pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            for i in range(20):
                table.push(keys, rows, tick=True) if name == "push" else client.table(f"t{i}", dim=4)
        except (psd.Closed, psd.Cancelled) as e:
            print(name, type(e).__name__)
        os.kill(server.pid, signal.SIGCONT)
"""
    ends = python(program).split()
    assert ends[::2] == ["push", "table"] and set(ends[1::2]) <= {"Closed", "Cancelled"}, ends


def test_no_sigpipe_is_left_to_a_caller_that_blocks_it(python):
    program = """
import os, signal, threading, numpy as np, psd
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for _ in range(12):
    with psd.local() as server:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        client = psd.connect(server.url, job="a", give_up="1s")
        table, keys = client.table("item", dim=8), np.arange(26)
        table.pull(keys)
        os.kill(server.pid, signal.SIGKILL)
        pulls = [table.pull_async(keys) for _ in range(1000)]
        client.close()
        assert signal.SIGPIPE not in signal.sigpending()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPIPE})
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
signal.pthread_kill(threading.get_ident(), signal.SIGPIPE)  # the caller's own stays
with psd.local() as server, psd.connect(server.url, job="a") as client:
    client.table("item", dim=8).pull(keys)
assert signal.SIGPIPE in signal.sigpending()
print("alive", flush=True)
os._exit(0)
"""
    assert python(program) == "alive\n"


def test_a_table_of_another_client_is_refused(server):
    with psd.connect(server.url, job="a") as a, psd.connect(server.url, job="b") as b:
        wide, narrow, keys = a.table("item", dim=4096), b.table("item", dim=4), np.arange(3)
        for call in [lambda: a.pull([(narrow, keys)]), lambda: a.push([(narrow, keys, np.zeros((3, 4), np.float32))])]:
            with pytest.raises(psd.UsageError, match="table 'b/item' is another client's"):
                call()
        with pytest.raises(psd.UsageError, match="a table is a str"):
            a.pull([("item", keys)])
        assert wide.pull(keys).shape == (3, 4096)


def test_a_handler_that_returns_does_not_end_a_wait(server):
    c, pull = parked(server.url)
    calls = []
    old = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    with pytest.raises(psd.Timeout):
        pull.wait(0.4)
    signal.signal(signal.SIGUSR1, old)
    assert calls
    c.close()


def test_a_dropped_pull_leaves_its_arrays_alone(client):
    table = client.table("item", dim=4)
    for _ in range(200):
        client.pull([(table, KEYS)])
    assert table.pull(KEYS).shape == (3, 4) and not client._handle.borrowed


# --- processes ---

FORKED = """
import os, psd, sys
with psd.local() as server:
    c = psd.connect(server.url, job="j")
    table = c.table("item", dim=1)
    pid = os.fork()
    if pid == 0:
        try:
            table.pull([1])
        except psd.ForkError as e:
            own = psd.connect(server.url, job="j", reader=True)
            print(e, own.table("item").pull([1]).shape, flush=True)
            own.close()
        c.close()
        os._exit(0)
    os.waitpid(pid, 0)
    print(table.pull([1]).shape)
    c.close()
"""


def test_a_child_of_fork_gets_a_fork_error(python):
    said = python(FORKED).split("\n")
    assert "after fork() open one" in said[0] and said[0].endswith("(1, 1)") and said[1] == "(1, 1)"


def test_a_local_psd_ends_with_its_parent():
    program = "import psd, time; s = psd.local(); print(s.pid, s.data_dir, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, stdout=subprocess.PIPE, text=True)
    pid, folder = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") or os.path.exists(os.path.dirname(folder)):
        assert time.monotonic() < end, "psd or its folder is still there"
        time.sleep(0.05)


def test_a_local_psd_starts_quickly_and_leaves_nothing():
    times, url = [], None
    for _ in range(5):
        began = time.monotonic()
        with psd.local() as server:
            times.append(time.monotonic() - began)
            folder = os.path.dirname(server.data_dir)
            assert server.url != url
            url = server.url
        assert not os.path.exists(folder)
    assert min(times) < 0.25, times  # 15 ms on a quiet machine


def test_a_psd_that_does_not_start_says_why(monkeypatch):
    with pytest.raises(psd.Error, match="memory-max"):
        psd.local(memory_max="much")
    monkeypatch.setenv("PSD_BIN", "/nonexistent/psd")
    with pytest.raises(psd.Error, match="did not start.*nonexistent"):
        psd.local()


def test_a_library_that_is_missing_is_one_sentence(monkeypatch):
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PSD_LIBRARY": "/nonexistent/libpsd.so.1"}
    done = subprocess.run([sys.executable, "-c", "import psd"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ImportError: psd: /nonexistent/libpsd.so.1 cannot be opened" in done.stderr
