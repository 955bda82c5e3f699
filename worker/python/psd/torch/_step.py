"""The pulls of a model's steps: for each batch one, of all its tables and its dense part."""

import time

import numpy as np
import torch

from .._errors import UsageError
from ._jagged import find_jagged


class Batch:
    """A batch whose pull is under way."""

    def __init__(self, plans, dense, pull):
        self.plans, self.dense, self.pull = plans, dense, pull  # [(collection, plan)], [(table, keys, rows)]
        self.has_dense_set = False


class Step:
    def __init__(self, client, collections, dense=None):
        self.client, self.collections, self.dense = client, collections, dense
        self.now = None  # the batch that prefetch() gave out last, or that a forward began
        self.is_off = False  # export() runs the model without servers
        self.ahead = 0  # batches that are pulled, and not yet given out

    def begin(self, thing, ahead=0):
        """Starts the pull for what a batch has of the collections' features; for the step after `ahead` others."""
        jagged = find_jagged(thing)
        plans = []
        for collection in self.collections:
            plans += [(collection, collection.plan(j)) for j in jagged if collection.takes(j)]
        sections = [(*section, collection.pull_codec) for collection, plan in plans for section in plan.sections()]
        dense = [self.dense.section()] if self.dense else []
        pull = self.client.pull(sections + dense, clock=self.client.clock + ahead) if sections or dense else None
        return Batch(plans, dense, pull)

    def enter(self, _, arguments):
        """The model's forward begins: its dense part becomes that of this batch."""
        if self.is_off:
            return
        batch = self.now
        if batch is None or batch.has_dense_set or not self._is_of(batch, arguments):
            batch = self.now = self.begin(arguments)
        if batch.pull:
            batch.pull.wait()
        for _, _, rows in batch.dense:
            self.dense.set(rows)
        batch.has_dense_set = True

    @staticmethod
    def _is_of(batch, arguments):
        known = {id(plan.jagged) for _, plan in batch.plans}
        return all(id(j) in known for j in find_jagged(arguments)) or not batch.plans

    def arrived(self, collection, jagged):
        """The plan of a collection for these ids, with its rows."""
        plan = self._find(collection, jagged)
        if plan is None:
            plan = collection.plan(jagged)
            self.client.pull(plan.sections(), codec=collection.pull_codec).wait()
        return plan

    def _find(self, collection, jagged):
        for at, (owner, plan) in enumerate(self.now.plans if self.now else ()):
            if owner is collection and plan.jagged is jagged:
                if self.now.pull:
                    self.now.pull.wait()
                del self.now.plans[at]  # a second forward of the same batch pulls again
                return plan
        return None


class Dense:
    """Parameters as one dense table. They are views of the buffer that a pull has filled."""

    def __init__(self, client, parameters, name, spec, timeout):
        self.client, self.parameters = client, parameters
        n = sum(p.numel() for p in parameters)
        if any(p.device.type != "cpu" or str(p.dtype) != "torch.float32" for p in parameters):
            raise UsageError("parameters on psd are float32 on the CPU; give dense=a torch optimizer for others")
        self.table = client.table(name, floats=n, **spec)
        self.keys = np.arange(-(-n // self.table.dim), dtype=np.uint64)
        self.n, self.gradients = n, np.zeros((len(self.keys), self.table.dim), np.float32)
        self._agree_on_start(client, name, timeout)

    def _agree_on_start(self, client, name, timeout):
        """The weights of rank 0's model, if the servers have none yet."""
        mark = client.table(name + ".is-set", floats=1, optimizer="sgd", lr=0, mode="async")
        end = time.monotonic() + timeout
        if client.options.get("rank", 0) == 0 and not mark.pull([0]).any():
            weights = np.zeros_like(self.gradients)
            self._flatten([p.detach() for p in self.parameters], weights)
            client.push([(self.table, self.keys, weights)], assign=True)
            client.flush()
            one = np.zeros((1, mark.dim), np.float32)
            one[0, 0] = 1
            client.push([(mark, [0], one)], assign=True)
            client.flush()
        while not mark.pull([0]).any():
            if time.monotonic() > end:
                raise UsageError(f"rank 0 has not set the first weights of {self.table.name} within {timeout:g} s")
            time.sleep(0.02)

    @staticmethod
    def _flatten(tensors, rows):
        flat, at = rows.reshape(-1), 0
        for t in tensors:
            flat[at:at + t.numel()] = t.numpy().reshape(-1)
            at += t.numel()

    def section(self):
        return self.table, self.keys, np.empty_like(self.gradients)

    def set(self, rows):
        flat, at = torch.from_numpy(rows.reshape(-1)), 0
        for p in self.parameters:
            p.data = flat[at:at + p.numel()].view(p.shape)
            at += p.numel()

    def refresh(self):
        table, keys, rows = self.section()
        self.client.pull([(table, keys, rows)]).wait()
        self.set(rows)

    def assign(self):
        weights = np.zeros_like(self.gradients)
        self._flatten([p.detach() for p in self.parameters], weights)
        self.client.push([(self.table, self.keys, weights)], assign=True)

    def push_section(self):
        flat, at = self.gradients.reshape(-1), 0
        for p in self.parameters:
            part = flat[at:at + p.numel()]
            part[:] = 0 if p.grad is None else p.grad.numpy().reshape(-1)
            at += p.numel()
        return self.table, self.keys, self.gradients
