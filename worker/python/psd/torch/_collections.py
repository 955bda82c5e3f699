"""Embedding tables on psd as modules. What a batch needs of all tables is one pull, into one buffer for each row
width; that buffer is a leaf tensor, whose gradient already is the push."""

import dataclasses
from typing import Optional

import numpy as np
import torch
from torch.nn import functional as F

from .._errors import UsageError
from ._jagged import JaggedTensor, KeyedTensor, is_jagged
from ._step import Step


@dataclasses.dataclass
class EmbeddingConfig:
    """A table: its name in the job, its width, the features that look rows up in it (several share it), its optimizer
    on the servers. spec: more words of psd_table(). num_embeddings is TorchRec's, and ignored: tables grow."""

    name: str
    embedding_dim: int
    feature_names: list
    optimizer: str = "adagrad"
    lr: Optional[float] = None
    spec: dict = dataclasses.field(default_factory=dict)
    num_embeddings: int = 0


@dataclasses.dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """pooling: "sum", "mean", or TorchRec's PoolingType. A weighted mean is refused, as nn.EmbeddingBag does."""

    pooling: str = "sum"


class _Group:
    """Tables of one width and one pooling: one buffer, one look-up."""

    def __init__(self, dim, pooling):
        self.dim, self.pooling, self.tables, self.features = dim, pooling, [], []


class _Part:
    """Of a batch: a group's rows."""

    def __init__(self, group, sections, indices, lengths, weights, n_rows):
        self.group, self.sections, self.indices, self.lengths, self.weights = group, sections, indices, lengths, weights
        self.rows = np.empty((n_rows, group.dim), np.float32)
        self.leaf = None


class Plan:
    """The rows that a collection needs for one batch: which keys, and where each id's row is."""

    def __init__(self, jagged, batch, parts):
        self.jagged, self.batch, self.parts = jagged, batch, parts

    def sections(self):
        return [(table, keys, part.rows[first:first + len(keys)])
                for part in self.parts for table, keys, first in part.sections]


class _Collection(torch.nn.Module):
    def __init__(self, client, tables, pull_codec="fp32", push_codec="fp32"):
        super().__init__()
        self._client, self.configs = client, list(tables)
        self.pull_codec, self.push_codec = pull_codec, push_codec
        self._groups, seen = {}, {}
        for config in self.configs:
            for feature in config.feature_names:
                if feature in seen:
                    raise UsageError(f"feature {feature!r} stands in tables {seen[feature]!r} and {config.name!r}; "
                                     "expected one")
                seen[feature] = config.name
            table = self._open(client, config)
            key = config.embedding_dim, self._pooling(config)
            group = self._groups.setdefault(key, _Group(*key))
            group.tables.append((table, config.feature_names))
            group.features += config.feature_names
        if not seen:
            raise UsageError("a collection has no table, or no feature")
        self.feature_names = list(seen)
        self.used = []  # plans of forwards since the last step
        self.given = None
        self.step = Step(client, [self])  # an Optimizer has one for its model

    def __deepcopy__(self, memo):
        return type(self)(self._client, self.configs, self.pull_codec, self.push_codec)

    @staticmethod
    def _open(client, config):
        if not client.is_reader:
            return client.table(config.name, dim=config.embedding_dim,
                                **{"optimizer": config.optimizer, "lr": config.lr, **config.spec})
        table = client.table(config.name)
        if table.dim != config.embedding_dim:
            raise UsageError(f"table {table.name} has rows of {table.dim} floats; expected {config.embedding_dim}")
        return table

    @staticmethod
    def _pooling(config):
        return None

    def extra_repr(self):
        return ", ".join(f"{c.name}[{c.embedding_dim}]: {'+'.join(c.feature_names)}" for c in self.configs)

    # --- before the pull ---

    def takes(self, jagged):
        return set(self.feature_names) <= set(jagged.keys())

    def plan(self, jagged):
        """Which rows a batch needs. Asks no server."""
        if not is_jagged(jagged):
            raise UsageError(f"{type(self).__name__} was given a {type(jagged).__name__}; expected a KeyedJaggedTensor")
        keys = list(jagged.keys())
        missing = [name for name in self.feature_names if name not in keys]
        if missing:
            raise UsageError(f"the batch has no feature {missing[0]!r}; it has {', '.join(map(repr, keys))}")
        values, lengths, weights = jagged.values(), jagged.lengths(), jagged.weights_or_none()
        if values.dtype != torch.int64 or values.dim() != 1:
            raise UsageError(f"ids are {values.dtype} {list(values.shape)}; expected int64 of one dimension")
        values = values.detach().cpu().contiguous().numpy()
        lengths = lengths.detach().cpu().to(torch.int64).numpy().reshape(len(keys), -1)
        ends = np.cumsum(lengths.sum(1))
        if len(keys) and ends[-1] != len(values):
            raise UsageError(f"lengths add up to {ends[-1]}, and there are {len(values)} ids")
        spans = {key: slice(end - n, end) for key, end, n in zip(keys, ends.tolist(), lengths.sum(1).tolist())}
        rows = {key: i for i, key in enumerate(keys)}
        return Plan(jagged, lengths.shape[1],
                    [self._plan_group(g, values, lengths, weights, spans, rows) for g in self._groups.values()])

    def _plan_group(self, group, values, lengths, weights, spans, rows):
        n, sections, indices = 0, [], []
        for table, features in group.tables:
            ids = [values[spans[f]] for f in features]
            ids = ids[0] if len(ids) == 1 else np.concatenate(ids)
            keys, inverse = self._client.unique(ids)
            inverse += n
            sections.append((table, keys, n))
            indices.append(inverse)
            n += len(keys)
        picked = np.concatenate([lengths[rows[f]] for f in group.features])
        weights = None if weights is None else torch.cat([weights[spans[f]] for f in group.features])
        return _Part(group, sections, torch.from_numpy(np.concatenate(indices)), picked, weights, n)

    # --- after it ---

    def forward(self, jagged):
        if self.given is not None:  # export(): pooled rows are inputs
            return self.keyed(self.given)
        plan = self.step.arrived(self, jagged)
        records = self.training and torch.is_grad_enabled()
        for part in plan.parts:
            part.leaf = torch.from_numpy(part.rows)
            part.leaf.requires_grad_(records)
        if records:
            self.used.append(plan)
        return self.output(plan)


class EmbeddingBagCollection(_Collection):
    """Pooled rows: KeyedJaggedTensor in, KeyedTensor out, float32 [batch][sum of the features' dims].

        ebc = EmbeddingBagCollection(client, [EmbeddingBagConfig("item", 16, ["hist", "target"], lr=0.01)])

    pull_codec, push_codec: fp32, bf16, fp16, int8 (pushes: onebit, topk). Gradients go to the servers in
    Optimizer.step(). In eval mode, and without gradients, rows are only read. SpecError: the table is there with
    another specification."""

    @staticmethod
    def _pooling(config):
        name = str(getattr(config.pooling, "name", config.pooling)).lower()
        if name not in ("sum", "mean"):
            raise UsageError(f"table {config.name!r}: pooling {config.pooling!r}; expected sum or mean")
        return name

    def _pool(self, part, batch):
        """[features][batch][dim]"""
        group, n_features = part.group, len(part.group.features)
        if part.weights is not None and group.pooling == "mean":
            raise UsageError("mean pooling takes no weights")
        if part.weights is None and (part.lengths == 1).all():
            pooled = F.embedding(part.indices, part.leaf)
        else:
            offsets = np.zeros(len(part.lengths), np.int64)
            np.cumsum(part.lengths[:-1], out=offsets[1:])
            leaf = part.leaf if len(part.rows) else part.leaf.new_zeros(1, group.dim)
            pooled = F.embedding_bag(part.indices, leaf, torch.from_numpy(offsets), mode=group.pooling,
                                     per_sample_weights=part.weights)
        return pooled.view(n_features, batch, group.dim)

    def keyed(self, values):
        dims = {f: c.embedding_dim for c in self.configs for f in c.feature_names}
        return KeyedTensor(self.feature_names, [dims[f] for f in self.feature_names], values)

    def output(self, plan):
        pooled = {}
        for part in plan.parts:
            rows = self._pool(part, plan.batch)
            if len(plan.parts) == 1:  # whose features stand in the collection's order
                return self.keyed(rows.transpose(0, 1).reshape(plan.batch, -1))
            pooled.update(zip(part.group.features, rows))
        return self.keyed(torch.cat([pooled[f] for f in self.feature_names], 1))


class EmbeddingCollection(_Collection):
    """Rows that are not pooled: KeyedJaggedTensor in, {feature: JaggedTensor} out, whose values are float32 [ids of
    the feature][dim]."""

    def output(self, plan):
        found = {}
        for part in plan.parts:
            rows = F.embedding(part.indices, part.leaf)
            lengths = torch.from_numpy(part.lengths).view(len(part.group.features), plan.batch)
            counts = lengths.sum(1).tolist()
            weights = [None] * len(counts) if part.weights is None else part.weights.split(counts)
            for feature, *of_it in zip(part.group.features, rows.split(counts), lengths, weights):
                found[feature] = JaggedTensor(*of_it)
        return {f: found[f] for f in self.feature_names}
