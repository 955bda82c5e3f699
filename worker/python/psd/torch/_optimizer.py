"""One step of all parts of a model: a push of the rows' gradients and of the dense part, with its tick."""

import numpy as np
import torch

from .._errors import UsageError
from ._collections import _Collection
from ._step import Dense, Step


class Optimizer:
    """Steps a model whose tables are on psd.

    model: has one or several collections in it; may be wrapped in DistributedDataParallel. client: psd.connect()'s.
    dense: "psd": the model's parameters are a dense table, stepped on the servers by `optimizer` with `lr` (and more
    words of psd_table()), and pulled with each batch: `model` has to be called as a module. A torch optimizer: it
    steps them here; each worker has its own, or DDP keeps them the same. None: they are left alone. The first weights
    on psd are those of rank 0's model; others wait up to `timeout` seconds for them.

        loss(model(batch)).backward()
        opt.step()
    """

    def __init__(self, model, client, dense="psd", optimizer="adagrad", lr=None, name="dense", timeout=60, **spec):
        self.model, self.client = model, client
        self.collections = [m for m in model.modules() if isinstance(m, _Collection)]
        if any(c._client is not client for c in self.collections):
            raise UsageError("a collection of this model has another client")
        self.torch_optimizer, on_psd = None, None
        parameters = [p for p in model.parameters() if p.requires_grad]
        if dense == "psd":
            if parameters:
                on_psd = Dense(client, parameters, name, {"optimizer": optimizer, "lr": lr, **spec}, timeout)
        elif dense is not None:
            if not hasattr(dense, "step") or not hasattr(dense, "zero_grad"):
                raise UsageError(f"dense is {dense!r}; expected 'psd', a torch optimizer, or None")
            self.torch_optimizer = dense
        self.pulls = Step(client, self.collections, on_psd)
        for collection in self.collections:
            collection.step = self.pulls
        model._psd_pulls = (self.pulls,)  # in a tuple: no module, and nothing for state_dict()
        self._hook = model.register_forward_pre_hook(self.pulls.enter)
        if on_psd:
            on_psd.refresh()

    @property
    def dense(self):
        return self.pulls.dense

    def zero_grad(self, set_to_none=True):
        """Drops what forwards since the last step have gathered."""
        for collection in self.collections:
            collection.used.clear()
        self.model.zero_grad(set_to_none=set_to_none)

    def step(self, samples=None):
        """Sends the gradients of all forwards since the last step, and ticks. samples: in this step; None: of the
        batches."""
        sections, codecs, n = {}, {}, 0
        for collection in self.collections:
            n = max(n, sum(plan.batch for plan in collection.used))
            codecs.update((table, collection.push_codec) for group in collection._groups.values() for table,
                          _ in group.tables)
            for plan in collection.used:
                for part in plan.parts:
                    self._gather(part, sections)
        pushed = [(*_merge(table, parts), codecs[table]) for table, parts in sections.items()]
        if self.dense:
            pushed.append(self.dense.push_section())
        self.client.push(pushed, tick=True, samples=samples or max(1, n))
        if self.torch_optimizer:
            self.torch_optimizer.step()
        self.zero_grad()

    @staticmethod
    def _gather(part, sections):
        if part.leaf.grad is None:
            return
        gradients = part.leaf.grad.numpy()
        for table, keys, first in part.sections:
            if len(keys):
                sections.setdefault(table, []).append((keys, gradients[first:first + len(keys)]))

    def state_dict(self):
        """What is not on the servers."""
        return {"torch": self.torch_optimizer.state_dict() if self.torch_optimizer else None}

    def load_state_dict(self, state):
        if self.torch_optimizer and state["torch"]:
            self.torch_optimizer.load_state_dict(state["torch"])


def _merge(table, parts):
    """A table stands in a push once: where several forwards used it, gradients of a key are summed."""
    if len(parts) == 1:
        return (table, *parts[0])
    keys, inverse = table.client.unique(np.concatenate([keys for keys, _ in parts]))
    summed = torch.zeros(len(keys), table.dim)
    summed.index_add_(0, torch.from_numpy(inverse), torch.from_numpy(np.concatenate([rows for _, rows in parts])))
    return table, keys, summed.numpy()
