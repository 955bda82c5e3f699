"""Finds libpsd.so.1 and opens it."""

import ctypes.util
import os
import pathlib

import cffi

from ._cdef import CDEF

SONAME = "libpsd.so.1"
ffi = cffi.FFI()
ffi.cdef(CDEF)


def find_library():
    """PSD_LIBRARY, else the one that the wheel carries, else the system's: a path, or a name for the loader."""
    named = os.environ.get("PSD_LIBRARY")
    if named:
        return named
    carried = pathlib.Path(__file__).parent / "lib" / SONAME
    return str(carried) if carried.exists() else ctypes.util.find_library("psd") or SONAME


def _open():
    where = find_library()
    try:
        return ffi.dlopen(where)
    except OSError as e:
        raise ImportError(f"psd: {where} cannot be opened ({e}); install psd's library, or name its path in PSD_LIBRARY"
                          ) from None


lib = _open()
