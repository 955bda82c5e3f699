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


def prefetch(loader, module, depth=1, exact_until=64):
    """The batches of a loader, each given out with the pulls of the `depth` next ones under way.

    module: the collection, the Optimizer, or its model. A batch's KeyedJaggedTensors are found in it; forward() has to
    be given these very objects, else it pulls anew. In lock step (bsp) the results are the same as without; in async a
    pull misses the `depth` last pushes of its own worker. Until clock `exact_until` such a job pulls nothing ahead:
    while steps are large, a gradient of older weights can cost accuracy for good. Each batch is a step: where
    gradients of several batches make one, lock step wants depth 0."""
    if depth < 0:
        raise UsageError(f"prefetch() with a depth of {depth}; expected 0 or more")
    pulls, waiting = _pulls_of(module), collections.deque()
    is_late_allowed = pulls.client.options.get("mode") != "bsp"

    def give():
        batch, pulls.now = waiting.popleft()
        pulls.ahead = len(waiting)
        return batch

    try:
        for batch in loader:
            waiting.append((batch, pulls.begin(batch, len(waiting))))
            while len(waiting) > (0 if is_late_allowed and pulls.client.clock < exact_until else depth):
                yield give()
        while waiting:
            yield give()
    finally:
        pulls.now, pulls.ahead = None, 0
        for _, left in waiting:
            if left.pull:
                left.pull.cancel()
