"""Real pairs of psd, and jobs that go on when the standby takes over."""

import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "system")]

from etcd import Etcd  # noqa: E402 (in this folder; the path is set first)
from etcd_pair import CountedPair  # noqa: E402
from pair import Pair, knows_standbys  # noqa: E402


@pytest.fixture
def pair(tmp_path):
    """pair(*flags) starts a primary, and a standby that is in sync with it, or in another `state`."""
    if not knows_standbys():
        pytest.skip("this psd has no --standby")
    pairs = []

    def start(*flags, **more):
        pairs.append(Pair(tmp_path / f"pair{len(pairs)}", *flags, **more))
        return pairs[-1]

    yield start
    for p in pairs:
        p.end()


def run_etcd(folder, n_members):
    etcd = Etcd(folder, n_members)
    yield etcd
    etcd.end()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    """One member, for all tests of a file; they leave it as they found it."""
    yield from run_etcd(tmp_path_factory.mktemp("etcd"), 1)


@pytest.fixture(scope="module")
def etcds(tmp_path_factory):
    """Three."""
    yield from run_etcd(tmp_path_factory.mktemp("etcds"), 3)


@pytest.fixture
def start(tmp_path):
    """start(etcd, *flags): a pair that is in sync, or whose standby is in another `state`, and a worker that has pushed. What was done to etcd
    is undone at the end."""
    begun = []

    def begin(etcd, *flags, url=None, **more):
        begun.append((CountedPair(tmp_path / f"pair{len(begun)}", "--coord", url or etcd.url(), *flags, **more), etcd))
        pair = begun[-1][0]
        pair.counter.ask("go")
        return pair, pair.counter

    yield begin
    for pair, etcd in begun:
        pair.end()
        etcd.heal()
