"""Whole tables from Python: rows that are set, scans, drops, which keys have a row."""

import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cffi", reason="cffi is missing: apt-get install python3-cffi")
import psd

SPEC = {"dim": 4, "optimizer": "sgd", "lr": 0.5}


def fill(client, n=5000, **spec):
    """A table with n rows, and their keys."""
    table = client.table("item", **{**SPEC, **spec})
    keys = np.random.default_rng(n).permutation(np.arange(n, dtype=np.uint64) * np.uint64(2**64 // n - 1))
    table.assign(keys, np.arange(n * 4, dtype=np.float32).reshape(n, 4))
    client.flush(30)
    return table, keys


def scanned(table, **more):
    """All arrays of a scan, in the order of the keys; each key came once."""
    parts = [np.concatenate(parts) for parts in zip(*table.scan(**more))]
    order = np.argsort(parts[0])
    assert (np.diff(parts[0][order].view(np.int64)) != 0).all(), "a key came twice"
    return [part[order] for part in parts]


# --- there and back ---

@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rowwise_adagrad", "momentum", "ftrl", "sgd", "adamw", "lion", "sm3", "came", "sm3_matrix"])
def test_a_table_goes_into_a_cluster_of_other_shards_bit_by_bit(optimizer):
    spec = {"dim": 6, "optimizer": optimizer}
    with psd.local(shards=2) as here, psd.local(shards=3) as there, psd.connect(here.url, job="j") as c, \
            psd.connect(there.url, job="j") as d:
        a, b = c.table("item", **spec), d.table("item", **spec)
        keys, random = psd.keys("item", np.arange(3000)), np.random.default_rng(3)
        for _ in range(7):
            a.push(keys, random.normal(size=(3000, 6)).astype(np.float32), tick=True)
        c.flush(30)
        with a.scan(batch=700, state=True) as scan:
            sizes = []
            for found, rows, state in scan:
                sizes.append(len(found))
                assert rows.shape == (len(found), 6) and state.shape == (len(found), a.n_state)
                b.assign(found, rows, state, steps=scan.steps)
        assert sizes == [700] * 4 + [200] and scan.steps == 7
        d.flush(30)
        before, after = scanned(a, state=True), scanned(b, state=True)
        for x, y in zip(before, after):
            assert x.tobytes() == y.tobytes()
        assert set(before[0].tolist()) == set(keys.tolist())
        gradients = random.normal(size=(3000, 6)).astype(np.float32)  # and it trains on as if nothing had happened
        for client, table in ((c, a), (d, b)):
            table.push(keys, gradients, tick=True)
            client.flush(30)
        np.testing.assert_array_equal(a.pull(keys), b.pull(keys))


def test_a_dense_table_is_scanned_and_set(client):
    table = client.table("dense", floats=10, dim=4)
    table.assign([0, 1, 2], np.arange(12, dtype=np.float32).reshape(3, 4))
    client.flush(10)
    keys, rows = scanned(table)
    assert keys.tolist() == [0, 1, 2] and (rows.reshape(-1)[:10] == np.arange(10)).all()


def test_batches_have_the_size_that_was_asked_for(client):
    table, keys = fill(client)
    first = scanned(table)
    assert first[0].tolist() == sorted(keys.tolist())
    order = np.argsort(keys)
    np.testing.assert_array_equal(first[1], np.arange(20000, dtype=np.float32).reshape(-1, 4)[order])
    for batch in (1, 999, 5000, 10**6):
        parts = list(table.scan(batch=batch)) if batch > 1 else [next(table.scan(batch=1))]
        assert [len(k) for k, _ in parts[:-1]] == [batch] * (len(parts) - 1) and 0 < len(parts[-1][0]) <= batch
        assert all(k.dtype == np.uint64 and r.dtype == np.float32 and r.flags.c_contiguous for k, r in parts)
    assert list(client.table("empty", dim=3).scan(state=True, batch=7)) == []


def test_the_arrays_of_a_scan_are_the_callers(client):
    table, _ = fill(client, 100_000)
    scan = table.scan()
    keys, rows = next(scan)
    seen = keys.copy(), rows.copy()
    rows_left = sum(len(k) for k, _ in scan)
    assert rows_left + len(keys) == 100_000 and rows_left > 0
    np.testing.assert_array_equal(keys, seen[0])
    np.testing.assert_array_equal(rows, seen[1])
    client.close()
    rows[:] = 0


def test_a_pull_says_which_keys_have_a_row(client):
    table = client.table("item", **SPEC)
    table.assign([3, 9], np.ones((2, 4), np.float32))
    rows, present = table.pull([3, 5, 9], present=True)
    assert present.tolist() == [True, False, True] and present.dtype == bool and (rows[present] == 1).all()
    rows, present = table.pull(np.array([[9, 5], [4, 3]]), present=True)
    assert present.tolist() == [[True, False], [False, True]] and rows.shape == (2, 2, 4)
    rows, present = table.pull([], present=True)
    assert rows.shape == (0, 4) and present.shape == (0,)
    other = client.table("other", dim=2)
    pull = client.pull([(table, np.arange(20)), (other, [1])], present=True)
    (_, first), (_, second) = pull.wait(10)
    assert np.flatnonzero(first).tolist() == [3, 9] and second.tolist() == [False] and pull.wait()[0][1] is first
    assert table.pull_async([3, 4], present=True).wait(10)[0][1].tolist() == [True, False]
    assert not table.pull([5], present=True)[1].any()  # asking makes no row


# --- while others train ---

def test_each_key_comes_once_while_another_worker_trains(server):
    with psd.connect(server.url, job="j", workers=2, rank=0) as c, psd.connect(server.url, job="j", workers=2, rank=1) as other:
        table, keys = fill(c, 20_000)
        trained, ends = other.table("item", **SPEC), threading.Event()
        random = np.random.default_rng(5)

        def train():
            while not ends.is_set():  # known rows, and new ones, whose keys are odd where the others' are known
                some = np.concatenate([random.choice(keys, 2000, replace=False), random.integers(0, 2**63, 500).astype(np.uint64)])
                trained.push(some, random.normal(size=(len(some), 4)).astype(np.float32), tick=True)
        thread = threading.Thread(target=train)
        thread.start()
        try:
            for _ in range(5):
                found, rows = scanned(table)
                assert np.isin(keys, found).all() and np.isfinite(rows).all()
        finally:
            ends.set()
            thread.join()


def test_a_scan_goes_on_where_a_server_was_restarted(tmp_path):
    flags = {"data_dir": tmp_path / "data", "durability": "fsync"}
    with psd.local(shards=2, **flags) as server:
        port = server.port
        c = psd.connect(server.url, job="j", give_up="30s")
        table, keys = fill(c, 100_000)
        scan = table.scan(timeout=30)
        parts = [next(scan)]
        os.kill(server.pid, signal.SIGKILL)
    with psd.local(shards=2, listen=f"127.0.0.1:{port}", **flags):
        parts += list(scan)
        found = np.concatenate([k for k, _ in parts])
        assert len(parts) > 1 and len(found) == len(keys) and set(found.tolist()) == set(keys.tolist())
        c.close()


# --- drops ---

def test_drop_asks_whether_workers_are_there(server):
    with psd.connect(server.url, job="j", reader=True) as reader:
        with psd.connect(server.url, job="j") as c:
            fill(c, 100)
            c.table("other", dim=2)
            with pytest.raises(psd.Busy, match="has workers"):
                c.drop()
            with pytest.raises(psd.Busy, match="has workers"):
                c.table("other").drop()
            assert c.drop("nobody") == {"tables": 0, "rows": 0, "bytes": 0}
        item = reader.table("item")
        gone = reader.table("other").drop()
        assert gone["tables"] == 1 and gone["rows"] == 0
        gone = reader.drop(timeout=20)
        assert gone["tables"] == 1 and gone["rows"] == 100 and gone["bytes"] > 0
        with pytest.raises(psd.NoSuchTable):
            item.pull([1])
        with pytest.raises(psd.NoSuchTable):
            reader.table("item")
        with psd.connect(server.url, job="j") as c:
            assert not c.table("item", **SPEC).pull([0], present=True)[1].any()
            assert reader.table("item").pull([0]).shape == (1, 4)


# --- misuse ---

ROWS = np.ones((2, 4), np.float32)


@pytest.mark.parametrize("misuse, error, sentence", [
    (lambda c, t: t.assign([1, 2], ROWS.astype(np.float64)), psd.UsageError, "rows are float64; expected float32"),
    (lambda c, t: t.assign([1, 2], ROWS[:, :3]), psd.UsageError, r"rows have the shape \[2, 3\]; expected \[2, 4\]"),
    (lambda c, t: t.assign([1.0, 2.0], ROWS), psd.UsageError, "keys are float64"),
    (lambda c, t: t.assign([2, 2], ROWS), psd.UsageError, "stands twice"),
    (lambda c, t: t.assign([1, 2], ROWS, ROWS[:1]), psd.UsageError, r"state have the shape \[1, 4\]; expected \[2, 8\]"),
    (lambda c, t: t.assign([1, 2], ROWS, np.ones((2, 8))), psd.UsageError, "state are float64"),
    (lambda c, t: t.assign([1, 2], ROWS, steps=3), psd.UsageError, "steps are given, and no state"),
    (lambda c, t: t.assign([1, 2], ROWS, np.ones((2, 8), np.float32), steps=-1), psd.UsageError, "-1 steps"),
    (lambda c, t: t.assign([1, 2], ROWS, np.ones((2, 8), np.float32), steps=2.5), psd.UsageError, "2.5 steps"),
    (lambda c, t: t.assign([1, 2], ROWS * np.nan), psd.NotFiniteError, "key 1 has NaN or infinity"),
    (lambda c, t: t.assign([7, 5], np.array([[1] * 4, [1, 2, np.inf, 4]], np.float32)), psd.NotFiniteError, "key 5 has NaN"),
    (lambda c, t: t.assign([1, 2], ROWS, np.full((2, 8), np.nan, np.float32)), psd.NotFiniteError, "key 1 has NaN.*state"),
    (lambda c, t: t.scan(batch=0), psd.UsageError, "a batch of 0 rows"),
    (lambda c, t: t.scan(batch=1.5), psd.UsageError, "a batch of 1.5 rows"),
    (lambda c, t: next(t.scan(timeout=-1)), psd.UsageError, "expected 0 or more"),
    (lambda c, t: pickle.dumps(t.scan()), psd.ForkError, "cannot be pickled"),
    (lambda c, t: c.drop(""), psd.UsageError, "a job is named ''"),
    (lambda c, t: c.drop(7), psd.UsageError, "a job is named 7"),
    (lambda c, t: c.drop("x" * 200), psd.UsageError, "1 to 127 bytes"),
    (lambda c, t: c.drop("x", timeout=-1), psd.UsageError, "expected 0 or more"),
    (lambda c, t: [t.scan() for _ in range(3)] and [list(map(lambda _: t.scan(), range(100)))], psd.MemoryFull,
     "64 scans have not ended"),
])
def test_misuse_is_one_sentence(client, misuse, error, sentence):
    table = client.table("item", dim=4, optimizer="adam")
    with pytest.raises(error, match=sentence) as caught:
        misuse(client, table)
    assert "\n" not in str(caught.value)
    client.flush(10)
    assert not table.pull([1, 2, 5], present=True)[1].any() and client.stats()["pushes"] == 0


def test_what_only_a_server_can_see_is_refused_by_the_flush(client):
    table = client.table("item", dim=2, optimizer="adagrad")
    table.assign([1], np.ones((1, 2), np.float32), np.full((1, 2), -1, np.float32))
    with pytest.raises(psd.NotFiniteError, match="negative sum of squares"):
        client.flush(10)


def test_a_reader_scans_and_sets_nothing(server, client):
    fill(client, 100)
    with psd.connect(server.url, job="test", reader=True) as reader:
        table = reader.table("item")
        assert len(scanned(table)[0]) == 100
        with pytest.raises(psd.UsageError, match="reader"):
            table.assign([1], np.ones((1, 4), np.float32))


def test_a_closed_client(server):
    c = psd.connect(server.url, job="j")
    table, _ = fill(c, 100_000)
    scan = table.scan()
    next(scan)
    c.close()
    for call in (lambda: next(scan), lambda: table.assign([1], np.ones((1, 4), np.float32)), table.scan, table.drop, c.drop):
        with pytest.raises(psd.Closed, match="closed"):
            call()
    scan.close()


def test_a_child_of_fork(server, client):
    table, _ = fill(client, 100)
    scan = table.scan()
    pid = os.fork()
    if pid == 0:
        status = 8
        try:
            next(scan)
        except psd.ForkError:
            scan.close()
            status = 7
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert sum(len(k) for k, _ in scan) == 100


# --- waits ---

@pytest.fixture
def stopped():
    """A client, its table with rows, and a server that does not answer for now."""
    with psd.local(shards=2) as server:
        c = psd.connect(server.url, job="j", give_up="60s")
        table, keys = fill(c, 100_000)
        scan = table.scan()
        first = next(scan)
        os.kill(server.pid, signal.SIGSTOP)
        yield table, scan, len(keys) - len(first[0]), server
        os.kill(server.pid, signal.SIGCONT)
        c.close()


def test_a_time_out_loses_nothing(stopped):
    table, scan, n_left, server = stopped
    scan.timeout, began = 0.3, time.monotonic()
    with pytest.raises(psd.Timeout):
        for keys, _ in scan:  # what is on its way already
            n_left -= len(keys)
    assert 0.25 < time.monotonic() - began < 5
    for call in (table.drop, table.client.checkpoint):
        began = time.monotonic()
        with pytest.raises(psd.Timeout):
            call(timeout=0.2)
        assert time.monotonic() - began < 2
    os.kill(server.pid, signal.SIGCONT)
    scan.timeout = 30
    assert sum(len(k) for k, _ in scan) == n_left


def interrupted(call):
    """It is under way when SIGINT comes, and has ended a fifth of a second later."""
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(0.3, interrupt)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        call()
    assert time.monotonic() - sent[0] < 0.2 + 0.3  # a busy machine's share
    timer.join()


def test_an_interrupt_ends_a_wait_and_loses_nothing(stopped):
    table, scan, n_left, server = stopped
    came = []
    interrupted(lambda: came.extend(len(keys) for keys, _ in scan))
    n_left -= sum(came)
    interrupted(table.drop)
    os.kill(server.pid, signal.SIGCONT)
    assert sum(len(k) for k, _ in scan) == n_left


def test_close_ends_the_scan_of_another_thread(stopped):
    table, scan, _, _ = stopped
    raised = []

    def read():
        try:
            list(scan)
        except psd.Cancelled as e:
            raised.append(e)
    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.3)
    table.client.close()
    thread.join(5)
    assert len(raised) == 1


def test_close_in_the_midst_of_scans(server):
    """Threads read libpsd's memory while the client is closed."""
    for i in range(10):
        c = psd.connect(server.url, job="j")
        table, _ = fill(c, 20_000)
        ended = []

        def read():
            try:
                while True:
                    for keys, rows in table.scan():
                        assert len(keys) == len(rows)
            except (psd.Cancelled, psd.UsageError) as e:
                ended.append(e)
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.01 * i)
        c.close()
        for thread in threads:
            thread.join(10)
        assert len(ended) == 3


def test_a_handler_of_a_signal_may_close_the_client(server):
    c = psd.connect(server.url, job="j")
    table, _ = fill(c, 100_000)
    old = signal.signal(signal.SIGUSR1, lambda *_: c.close())
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises((psd.Cancelled, psd.UsageError)):
            while True:
                list(table.scan())
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert c.closed


@pytest.mark.parametrize("call", [lambda t: list(t.scan()), lambda t: t.drop(), lambda t: t.drop(timeout=1),
                                  lambda t: (t.assign([1], np.ones((1, 4), np.float32)), t.client.flush())])
def test_servers_that_are_gone_are_an_error_in_the_time_that_was_given(call):
    with psd.local() as server:
        c = psd.connect(server.url, job="j", give_up="1s", push_timeout="2s")
        table, _ = fill(c, 100)
        os.kill(server.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(psd.Error) as caught:
            call(table)
        assert time.monotonic() - began < 8 and "\n" not in str(caught.value)
        c.close()
