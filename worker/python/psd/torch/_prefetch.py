"""Pulls ahead of the batches that need them."""

import collections

from .._errors import UsageError
from ._step import Step


def _pulls_of(module):
    if isinstance(module, Step):
        return module
    for name in ("pulls", "step"):
        if isinstance(getattr(module, name, None), Step):
            return getattr(module, name)
    held = getattr(module, "_psd_pulls", None)
    if not held:
        raise UsageError(f"prefetch() was given a {type(module).__name__}; expected a collection, an Optimizer, or a "
                         "model that has one")
    return held[0]


def prefetch(loader, module, depth=1):
    """The batches of a loader, each given out with the pulls of the `depth` next ones under way.

    module: the collection, the Optimizer, or its model. A batch's KeyedJaggedTensors are found in it; forward() has to
    be given these very objects, else it pulls anew. In lock step (bsp) the results are the same as without; in async a
    pull misses the `depth` last pushes of its own worker."""
    if depth < 0:
        raise UsageError(f"prefetch() with a depth of {depth}; expected 0 or more")
    pulls, waiting = _pulls_of(module), collections.deque()

    def give():
        batch, pulls.now = waiting.popleft()
        pulls.ahead = len(waiting)
        return batch

    try:
        for batch in loader:
            pulls.ahead = len(waiting)
            waiting.append((batch, pulls.begin(batch)))
            if len(waiting) > depth:
                yield give()
        while waiting:
            yield give()
    finally:
        pulls.now, pulls.ahead = None, 0
        for _, left in waiting:
            if left.pull:
                left.pull.cancel()
