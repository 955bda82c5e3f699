"""Jagged ids of many features. TorchRec's KeyedJaggedTensor is taken by its shape, so that torchrec is never
imported."""

import torch

from .._errors import UsageError


class JaggedTensor:
    """Rows of one feature: values [n][dim], lengths [batch], weights [n] or None."""

    def __init__(self, values, lengths, weights=None):
        self._values, self._lengths, self._weights = values, lengths, weights

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def offsets(self):
        return offsets_of(self._lengths)

    def weights_or_none(self):
        return self._weights


class KeyedJaggedTensor:
    """Ids of features `keys`: values int64 [n], behind each other by feature, then by sample; lengths [features *
    batch], or offsets with one more; weights float32 [n] or None."""

    def __init__(self, keys, values, weights=None, lengths=None, offsets=None):
        if (lengths is None) == (offsets is None):
            raise UsageError("a KeyedJaggedTensor needs either lengths or offsets")
        self._keys, self._values, self._weights = list(keys), values, weights
        self._lengths = lengths if lengths is not None else offsets[1:] - offsets[:-1]
        if self._keys and len(self._lengths) % len(self._keys):
            raise UsageError(f"{len(self._lengths)} lengths for {len(self._keys)} features: not a multiple")

    @classmethod
    def from_lengths_sync(cls, keys, values, lengths, weights=None):
        return cls(keys, values, weights, lengths=lengths)

    @classmethod
    def from_offsets_sync(cls, keys, values, offsets, weights=None):
        return cls(keys, values, weights, offsets=offsets)

    @classmethod
    def from_ids(cls, keys, ids):
        """One id a feature and sample: ids int64 [batch][features]."""
        n, n_features = ids.shape
        if n_features != len(list(keys)):
            raise UsageError(f"ids have {n_features} columns for {len(list(keys))} features")
        return cls(keys, ids.t().reshape(-1), lengths=torch.ones(n * n_features, dtype=torch.int64))

    @classmethod
    def from_lists(cls, features):
        """{feature: [[id, ...] of a sample, ...]}"""
        values = [i for samples in features.values() for ids in samples for i in ids]
        lengths = [len(ids) for samples in features.values() for ids in samples]
        return cls(features, torch.tensor(values, dtype=torch.int64), lengths=torch.tensor(lengths, dtype=torch.int64))

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def offsets(self):
        return offsets_of(self._lengths)

    def weights_or_none(self):
        return self._weights

    def stride(self):
        return len(self._lengths) // max(1, len(self._keys))


class KeyedTensor:
    """Pooled rows: values float32 [batch][sum of dims]; kt["feature"] is its part [batch][dim]."""

    def __init__(self, keys, length_per_key, values):
        self._keys, self._lengths, self._values = list(keys), list(length_per_key), values

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def length_per_key(self):
        return self._lengths

    def __getitem__(self, key):
        if key not in self._keys:
            raise KeyError(f"there is no feature {key!r}; there are {', '.join(self._keys)}")
        at = self._keys.index(key)
        first = sum(self._lengths[:at])
        return self._values[:, first:first + self._lengths[at]]

    def to_dict(self):
        return dict(zip(self._keys, self._values.split(self._lengths, dim=1)))


def offsets_of(lengths):
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def is_jagged(thing):
    needed = ("keys", "values", "lengths", "weights_or_none")
    return not isinstance(thing, (torch.Tensor, dict)) and all(hasattr(thing, name) for name in needed)


def find_jagged(thing, depth=4):
    """The KeyedJaggedTensors in a batch: itself, or in a list, a tuple, a dict or an object's attributes."""
    if is_jagged(thing):
        return [thing]
    if depth == 0 or thing is None or isinstance(thing, (torch.Tensor, str, bytes, int, float)):
        return []
    if isinstance(thing, (list, tuple)):
        inner = thing
    else:
        inner = (thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})).values()
    return [found for part in inner for found in find_jagged(part, depth - 1)]
