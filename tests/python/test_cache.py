"""A reader's cache: what it saves, what it refuses, and that no row is older than its bound while a worker pushes."""

import mmap
import os
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("cffi", reason="cffi is missing: apt-get install python3-cffi")
import psd
from places import PACKAGE

N_KEYS = 4000
MAX_AGE = 0.15
N_READS = 1_000_000

# Rows of version i hold i; version i is surely there from when acknowledged[i] says, on the clock that all processes share.
WRITER = """
import mmap, sys, time
import numpy as np
import psd

url, path, n_keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, "r+b") as f, psd.connect(url, job="test") as c:
    acknowledged = np.frombuffer(mmap.mmap(f.fileno(), 0), np.float64)
    table, trained = c.table("item", dim=4), c.table("other", dim=4)
    keys, dice = np.arange(n_keys, dtype=np.uint64), np.random.default_rng(1)
    table.assign(keys, np.zeros((n_keys, 4), np.float32))
    c.flush()
    acknowledged[0] = time.monotonic()
    for version in range(1, len(acknowledged)):
        table.assign(keys, np.full((n_keys, 4), version, np.float32))
        trained.push(keys[:500], np.ones((500, 4), np.float32), tick=True)
        c.flush()
        acknowledged[version] = time.monotonic()
        time.sleep(dice.uniform(0, 0.02))
"""


@pytest.fixture
def writer(server, tmp_path):
    path = tmp_path / "acknowledged"
    path.write_bytes(bytes(8 * 100_000))
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    process = subprocess.Popen([sys.executable, "-c", WRITER, server.url, str(path), str(N_KEYS)], env=env)
    with open(path, "rb") as f:
        times = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.float64)
    end = time.monotonic() + 60
    while times[2] == 0:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    yield times
    process.kill()
    process.wait()


def check(rows, began, times):
    """Each row is of one version, which no newer one had surely replaced MAX_AGE before the pull began. Returns the oldest age
    that is certain: how long ago the next version was acknowledged."""
    assert (rows == rows[:, :1]).all(), "a row of two versions"
    versions = np.unique(rows[:, 0]).astype(np.int64)
    next_at = times[versions + 1]
    ages = began - next_at[next_at > 0]
    assert (ages <= MAX_AGE).all(), f"a row had been replaced {ages.max() * 1000:.1f} ms before it was read"
    return max(ages.max(initial=0), 0)


def test_no_row_is_older_than_the_bound_in_a_million_reads(server, writer):
    dice = np.random.default_rng(2)
    weights = 1 / np.arange(1, N_KEYS + 1)
    weights /= weights.sum()
    oldest = 0
    with psd.connect(server.url, job="test", reader=True, cache="1M", max_age=MAX_AGE) as reader:
        table, n, pulls = reader.table("item"), 0, 0
        few = [dice.choice(N_KEYS, 26, replace=False, p=weights).astype(np.uint64) for _ in range(500)]
        many = [dice.choice(N_KEYS, 2600, replace=False).astype(np.uint64) for _ in range(20)]
        while n < N_READS:
            keys = many[pulls // 20 % len(many)] if pulls % 20 == 0 else few[pulls % len(few)]
            began = time.monotonic()
            rows = table.pull(keys)
            oldest = max(oldest, check(rows, began, writer))
            n += len(keys)
            pulls += 1
        stats = reader.cache_stats
    print(f"{n} reads in {pulls} pulls, replaced at most {oldest * 1000:.1f} ms before, {stats}")
    assert stats["hits"] > n / 10 and stats["misses"] > 1000, stats  # fewer on a machine that is busy
    assert stats["oldest_age_ns"] <= MAX_AGE * 1e9 and stats["bytes"] <= 1 << 20, stats
    assert oldest > MAX_AGE / 10, "rows were never old: the test has seen nothing"


def test_hits_need_no_server(client, server):
    client.table("item", dim=4).assign([3, 9], np.ones((2, 4), np.float32))
    client.flush()
    with psd.connect(server.url, job="test", reader=True, cache=1 << 20, max_age="1h") as reader:
        table = reader.table("item")
        np.testing.assert_array_equal(table.pull([9, 3]), np.ones((2, 4)))
        absent = table.pull([7])
        n_pulls = reader.stats()["pulls"]
        client.table("item").assign([3, 7], np.zeros((2, 4), np.float32))
        client.flush()
        np.testing.assert_array_equal(table.pull([9, 3]), np.ones((2, 4)))  # within the bound
        np.testing.assert_array_equal(table.pull([7]), absent)  # so are rows that were not there
        assert reader.stats()["pulls"] == n_pulls
        stats = reader.cache_stats
        assert (stats["hits"], stats["misses"], stats["rows"], stats["bytes_max"]) == (3, 3, 3, 1 << 20)
        assert stats["max_age_ns"] == 3600 * 10**9


def test_words_for_a_cache_are_checked(server):
    for options, words in [({"cache": "1M", "max_age": 1}, "reader=yes"), ({"reader": True, "cache": "1M"}, "max-age"),
                           ({"reader": True, "max_age": 2.0}, "cache=BYTES"), ({"reader": True, "cache": "1K", "max_age": 1}, "1M"),
                           ({"reader": True, "cache": "1M", "max_age": 1e-4}, "max-age"),
                           ({"reader": True, "cache": "1M", "max_age": float("nan")}, "max-age")]:
        with pytest.raises(psd.SettingError, match=words):
            psd.connect(server.url, job="test", **options)


def test_without_a_cache_there_is_nothing_to_count(client):
    assert set(client.cache_stats.values()) == {0}
