"""Keys of tokens, as psworker makes them."""

import numpy as np

from ._arrays import address
from ._errors import UsageError, check
from ._lib import ffi, lib


def _texts(tokens):
    for token in tokens:
        if isinstance(token, str):
            yield token.encode()
        elif isinstance(token, (bytes, bytearray)):
            yield bytes(token)
        elif isinstance(token, (int, np.integer)) and not isinstance(token, bool):
            yield str(int(token)).encode()
        else:
            raise UsageError(f"a token is {type(token).__name__}; expected str, bytes or int")


def keys(column, tokens):
    """The keys of a column's tokens: uint64, the shape of tokens.

    column: its name. tokens: str, bytes or integers (a list, or an array of numbers, str, bytes or objects); a
    number's key is that of its decimal text. Floats and None are refused: UsageError."""
    if not isinstance(column, str) or "\0" in column:
        raise UsageError(f"a column is named {column!r}; expected a text")
    seed = lib.psd_seed(column.encode())
    is_typed = isinstance(tokens, np.ndarray) or np.isscalar(tokens)
    a = np.asarray(tokens) if is_typed else np.asarray(tokens, dtype=object)
    if a.dtype.kind == "O" and a.size and all(type(t) is int and -2**63 <= t < 2**63 for t in a.flat):
        a = a.astype(np.int64)
    found = np.empty(a.size, np.uint64)
    if a.dtype.kind in "iu" and a.dtype != np.uint64:
        numbers = np.ascontiguousarray(a, dtype=np.int64)
        check(lib.psd_keys_int64(seed, address(numbers, "int64_t *"), numbers.size, address(found, "uint64_t *")))
    elif a.dtype.kind in "uOSU":
        texts = list(_texts(a.reshape(-1).tolist()))
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(t) for t in texts], out=offsets[1:])
        check(lib.psd_keys(seed, ffi.from_buffer(b"".join(texts) or b"\0"), address(offsets, "int64_t *"), len(texts),
                           address(found, "uint64_t *")))
    else:
        raise UsageError(f"tokens are {a.dtype}; expected str, bytes or integers")
    return found.reshape(a.shape)
