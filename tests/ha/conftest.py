"""Real pairs of psd, and jobs that go on when the standby takes over."""

import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "system")]

from pair import Pair, knows_standbys  # noqa: E402 (in this folder; the path is set first)


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
