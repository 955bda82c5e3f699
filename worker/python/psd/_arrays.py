"""Arguments as arrays that libpsd reads or writes in place; what does not fit is refused with one sentence."""

import numpy as np

from ._errors import UsageError
from ._lib import ffi


def as_keys(keys, what="keys"):
    """int64 or uint64 keys of any shape as uint64, without a copy where they are contiguous."""
    a = np.asarray(keys)
    if a.size == 0 and a.dtype.kind == "f" and not isinstance(keys, np.ndarray):
        a = a.astype(np.uint64)  # []
    if a.dtype.kind not in "iu":
        raise UsageError(f"{what} are {a.dtype}; expected int64 or uint64 (psd.keys() makes keys of texts)")
    if a.dtype.itemsize != 8:
        a = a.astype(np.int64)
    if not a.dtype.isnative:
        raise UsageError(f"{what} have another byte order than this machine")
    return np.ascontiguousarray(a).view(np.uint64).reshape(a.shape)


def ascends(keys):
    return keys.size < 2 or bool((keys[1:] > keys[:-1]).all())


def as_rows(rows, shape, what="rows"):
    """float32 [n][dim] to be read."""
    a = np.asarray(rows)
    if a.dtype != np.float32:
        raise UsageError(f"{what} are {a.dtype}; expected float32")
    if a.shape != tuple(shape):
        raise UsageError(f"{what} have the shape {list(a.shape)}; expected {list(shape)}")
    return np.ascontiguousarray(a)


def check_out(out, shape):
    """float32 [n][dim] to be written in place."""
    if not isinstance(out, np.ndarray) or out.dtype != np.float32:
        raise UsageError(f"out is {getattr(out, 'dtype', type(out).__name__)}; expected an array of float32")
    if out.shape != tuple(shape):
        raise UsageError(f"out has the shape {list(out.shape)}; expected {list(shape)}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError("out is not contiguous, or read-only; rows are written to it in place")
    return out


def copied(pointer, dtype, shape):
    """An array of the caller's own of what libpsd lends."""
    array = np.empty(shape, dtype)
    if array.size:
        ffi.memmove(array, pointer, array.nbytes)
    return array


def address(array, kind):
    return ffi.cast(kind, array.ctypes.data)
