"""psd: a parameter server for embedding tables. NumPy arrays in and out; psd.torch has modules for PyTorch.

    with psd.local() as server, psd.connect(server.url, job="demo") as c:
        item = c.table("item", dim=8, optimizer="adagrad", lr=0.1)
        keys = psd.keys("item", ["red shoe", "blue hat"])
        rows = item.pull(keys)
        item.push(keys, gradients, tick=True)
"""

from ._client import Client, Pull, Scan, Table, unique
from ._errors import (Busy, Cancelled, Closed, ConnectionLost, Error, Fenced, ForkError, GreetingError, JobError,
                      MemoryFull, NoCheckpoint, NoSuchTable, NotFiniteError, SettingError, SpecError, Timeout,
                      UsageError, WriteError)
from ._keys import keys
from ._lib import ffi as _ffi, lib as _lib
from ._local import LocalServer, local

__version__ = _ffi.string(_lib.psd_version()).decode()
__all__ = ["Busy", "Cancelled", "Client", "Closed", "ConnectionLost", "Error", "Fenced", "ForkError", "GreetingError",
           "JobError", "LocalServer", "MemoryFull", "NoCheckpoint", "NoSuchTable", "NotFiniteError", "Pull", "Scan",
           "SettingError", "SpecError", "Table", "Timeout", "UsageError", "WriteError", "connect", "keys", "local",
           "unique"]


def _time(seconds):
    """As libpsd reads it: whole milliseconds, rounded down. Text stays, and so does what is no number, to be refused."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return f"{int(seconds * 1000)}ms" if is_number and abs(seconds) < 1e9 else seconds


def connect(url, job=None, rank=0, workers=1, mode="async", staleness=None, reader=False, cache=None, max_age=None, **options):
    """Joins a job as one of its workers; reader=True: only reads, and nobody waits for it. Returns a Client.

    url: "psd://HOST:PORT[,HOST:PORT...][/JOB]", of any one node. mode: async, ssp (with staleness) or bsp. options:
    those of psd_open() with _ for -: token, token_file, tls_ca, tls_cert, tls_key, connect_timeout="5s", give_up,
    pull_timeout, push_timeout, window, name, zstd ...

    url may be "etcd://HOST:PORT[,HOST:PORT...]/CLUSTER[/JOB]": etcd then says, once, where the nodes are. coord_ca (over
    TLS), coord_cert, coord_key, coord_user, coord_password_file: as psd's options of these names.

    cache, max_age: memory for the rows that a reader has pulled ("256M"), and how old one may be, in seconds or "2s", counted
    from when it was asked for. Pulls then ask the servers for the keys that are missing or too old. Client.cache_stats.

    SettingError: an option is unknown or wrong. ConnectionLost: no server within connect_timeout (60 s). JobError: the
    job runs with another number of workers or backup workers, mode or staleness. GreetingError: wrong token, or no psd."""
    given = {"reader": True} if reader else {"rank": rank, "workers": workers, "mode": mode, "staleness": staleness}
    return Client(url, {**given, "cache": cache, "max_age": _time(max_age), **options}, job)
