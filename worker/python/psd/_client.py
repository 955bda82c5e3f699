"""Client, Table, Pull and Scan: libpsd's handle, tables, pulls under way, walks of a table."""

import errno
import os
import threading
import time
import weakref

import numpy as np

from . import _etcd
from ._arrays import address, ascends, as_keys, as_rows, check_out, copied
from ._errors import Closed, Error, ForkError, Timeout, UsageError, check, error_of
from ._lib import ffi, lib

SLICE_MS = 100  # of a wait, so that Python sees a signal that came at its very start
CODECS = {"fp32": lib.PSD_FP32, "bf16": lib.PSD_BF16, "fp16": lib.PSD_FP16, "int8": lib.PSD_INT8,
          "onebit": lib.PSD_ONEBIT, "topk": lib.PSD_TOPK}
KEYS_MAX = 1 << 20  # of a psd_assign(), between two of which Python sees a signal


def _quote(value):
    text = {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    if "\0" in text:
        raise UsageError("an option holds a NUL character")
    if text and not any(c in text for c in ' \t\r\n"\\'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def words(options):
    """{"connect_timeout": "5s"} as libpsd's text; None is left out."""
    return " ".join(f"{name.replace('_', '-')}={_quote(value)}" for name, value in options.items()
                    if value is not None).encode()


def codec_number(codec):
    if codec not in CODECS:
        raise UsageError(f"codec {codec!r} is unknown; expected one of {', '.join(CODECS)}")
    return CODECS[codec]


def sliced(call, timeout):
    """Calls call(ms) until it no longer says that the time is over. timeout: seconds; None: as long as libpsd's own
    bound."""
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"a timeout of {timeout} s; expected 0 or more, or None")
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = SLICE_MS if end is None else min(SLICE_MS, max(0, int((end - time.monotonic()) * 1000 + 0.999)))
        status = call(left)
        if status not in (-errno.ETIMEDOUT, -errno.EINTR):
            return check(status)
        if end is not None and time.monotonic() >= end:
            raise error_of(-errno.ETIMEDOUT, f"not ready after {timeout:g} s")


def milliseconds(timeout):
    """Of seconds, as libpsd takes them."""
    if not timeout >= 0:
        raise UsageError(f"a timeout of {timeout} s; expected 0 or more, or None")
    return min(int(timeout * 1000 + 0.999), 2**31 - 1)


def seconds_of(text):
    """libpsd's times: "10m", "500ms"; it has checked them."""
    number = text.rstrip("mshd")
    return float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[len(number):], 1)


class _Handle:
    """A psd *, never used once it is closed: who is late, or is in a call, when close() comes is the one that frees it.
    close() may be called by any thread, and by a handler of a signal that ended a wait."""

    def __init__(self, pointer):
        self.pointer, self.n_users, self.pid = pointer, 0, os.getpid()
        self.closes_last = None  # the pointer that the last user closes
        self.lock = threading.RLock()  # of a handler of a signal, too, that closes the client
        self.borrowed = {}  # a pull's number -> the arrays that libpsd writes and reads

    def __enter__(self):
        if os.getpid() != self.pid:  # before the lock, which another thread may have held at the fork
            raise ForkError("this client belongs to the process that opened it: after fork() open one with "
                            "psd.connect()",
                            -errno.ECHILD)
        with self.lock:
            if self.pointer is None:
                raise Closed("the client is closed")
            self.n_users += 1
            return self.pointer

    def __exit__(self, *_):
        closes = None
        with self.lock:
            self.n_users -= 1
            if not self.n_users:
                closes, self.closes_last = self.closes_last, None
        if closes:
            lib.psd_close(closes)

    def close(self):
        if os.getpid() != self.pid:  # libpsd's thread and connections stayed in the parent
            self.pointer = None
            return
        with self.lock:
            pointer, self.pointer = self.pointer, None
        if pointer is None:
            return
        lib.psd_end_waits(pointer)
        end = time.monotonic() + 0.2
        while self.n_users and time.monotonic() < end:  # a handler of a signal waits for its own thread in vain
            time.sleep(0.001)
        with self.lock:
            is_used = self.n_users > 0
            self.closes_last = pointer if is_used else None
        if not is_used:
            lib.psd_close(pointer)
            self.borrowed.clear()


class Pull:
    """Rows on their way, for Client.pull() and Table.pull_async(). Its arrays belong to psd until it has ended."""

    def __init__(self, handle, op, results, bits=None):
        self._handle, self._op, self._results, self._is_done = handle, op, results, False
        self._bits = bits

    def wait(self, timeout=None):
        """Returns the rows: a list with an array [n][dim] for each section; of a pull with present=True: with a pair of
        that and bool [n], which keys have a row.

        timeout: seconds; None: pull-timeout. Timeout: not yet, wait() can be called again. Cancelled, Fenced,
        ConnectionLost and other errors end the pull. KeyboardInterrupt leaves it under way."""
        if self._op:
            try:
                sliced(self._wait_once, timeout)
            except Timeout:
                raise
            except Error as e:
                if e.status != -errno.EBUSY:
                    self._end()
                raise
            self._end()
            self._is_done = True
            if self._bits:
                self._results = [(rows, np.unpackbits(bits, bitorder="little")[:len(rows)].astype(bool))
                                 for rows, bits in zip(self._results, self._bits)]
        elif not self._is_done:
            raise UsageError("this pull has failed or was cancelled")
        return self._results

    def done(self):
        """Whether wait() would return, or raise, at once."""
        try:
            self.wait(0)
        except Timeout:
            return False
        return True

    def cancel(self):
        """Drops it. Its rows are undefined."""
        if self._op and self._handle.pid == os.getpid():
            try:
                with self._handle as c:
                    lib.psd_cancel(c, self._op)
                    while lib.psd_wait(c, self._op, SLICE_MS) in (-errno.EINTR, -errno.ETIMEDOUT):
                        pass
            except Closed:
                pass
        self._end()

    def _wait_once(self, ms):
        with self._handle as c:
            return lib.psd_wait(c, self._op, ms)

    def _end(self):
        self._handle.borrowed.pop(self._op, None)
        self._op = 0

    def __del__(self):
        if getattr(self, "_op", 0):
            self.cancel()

    def __reduce__(self):
        raise ForkError("a psd.Pull cannot be pickled: it belongs to its process")


class Scan:
    """All rows of a table, each once: Table.scan(). An iterator; also a context manager, which ends it. `steps`: those
    of the table's optimizer, as far as is known; at the end of a scan with state the number for Table.assign()."""

    def __init__(self, table, batch, state, timeout):
        if batch is not None and not (isinstance(batch, (int, np.integer)) and batch > 0):
            raise UsageError(f"a batch of {batch!r} rows; expected 1 or more, or None")
        self.table, self.steps, self.timeout = table, 0, timeout
        self._batch, self._with_state = batch, bool(state)
        self._handle = table.client._handle
        self._number = 0
        self._number = int(table.client._call(lib.psd_scan_start, table._number, lib.PSD_STATE if state else 0))
        self._kept, self._n_kept = [], 0  # batches of arrays that are the caller's, and how many rows they have

    def __iter__(self):
        return self

    def __next__(self):
        while self._number and not (self._n_kept and (self._batch is None or self._n_kept >= self._batch)):
            self._fetch()
        if not self._n_kept:
            raise StopIteration
        return self._take(self._n_kept if self._batch is None else min(self._batch, self._n_kept))

    def _fetch(self):
        """The next rows, copied: libpsd's own are overwritten by the call after that."""
        rows = ffi.new("psd_rows *", {"size": ffi.sizeof("psd_rows")})
        found = []

        def once(ms):
            with self._handle as c:
                n = lib.psd_scan_next(c, self._number, rows, ms)
                if n > 0:
                    found.append(self._copied(rows, n))
                return n
        try:
            n = sliced(once, self.timeout)
        except Error as e:
            if e.status == -errno.ESTALE:
                self.close()
            raise
        self.steps = int(rows.steps)
        self._kept += found
        self._n_kept += n
        if n == 0:
            self.close()

    def _copied(self, rows, n):
        dim, n_state = self.table.dim, self.table.n_state
        arrays = copied(rows.keys, np.uint64, (n,)), copied(rows.rows, np.float32, (n, dim))
        return arrays + (copied(rows.state, np.float32, (n, n_state)),) if self._with_state else arrays

    def _take(self, n):
        """n rows of those that are kept."""
        if len(self._kept[0][0]) == n:
            self._n_kept -= n
            return self._kept.pop(0)
        whole, left = [], n
        while left:
            arrays = self._kept[0]
            part = min(left, len(arrays[0]))
            whole.append(tuple(a[:part] for a in arrays))
            self._kept[0] = tuple(a[part:] for a in arrays)
            if not len(self._kept[0][0]):
                self._kept.pop(0)
            left -= part
        self._n_kept -= n
        return tuple(np.concatenate(parts) for parts in zip(*whole))

    def close(self):
        """Ends it, before its end, too. Once is enough."""
        number, self._number = self._number, 0
        if number and self._handle.pid == os.getpid():
            try:
                with self._handle as c:
                    lib.psd_scan_end(c, number)
            except Closed:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_number", 0):
            self.close()

    def __reduce__(self):
        raise ForkError("a psd.Scan cannot be pickled: it belongs to its process")


class Client:
    """A worker of a job, or a reader; psd.connect() makes it. Threads may share it; processes may not: a DataLoader's
    workers only prepare batches, or open a client of their own (reader=True)."""

    def __init__(self, url, options, job):
        if not isinstance(url, str):
            raise UsageError(f"the address is {type(url).__name__}; expected a text, psd://HOST:PORT")
        if "://" not in url:
            url = "psd://" + url
        if job is not None:
            if url.count("/") > (3 if url.startswith("etcd://") else 2):
                raise UsageError(f"{url} names a job already, and job={job!r} another")
            url = f"{url}/{job}"
        coord = {name: options.pop(f"coord_{name}", None) for name in _etcd.OPTIONS}
        if url.startswith("etcd://"):
            url = _etcd.find(url, coord, seconds_of(str(options.get("connect_timeout") or "60s")))
        self.url, self.options = url, {name: value for name, value in options.items() if value is not None}
        self.is_reader = bool(options.get("reader"))
        self._tables = {}
        why, handle = ffi.new("char[]", 256), ffi.new("psd **")
        while True:
            status = lib.psd_open(handle, url.encode(), words(self.options), why)
            if status != -errno.EINTR:
                break
        if status:
            raise error_of(status, ffi.string(why).decode(errors="replace"))
        given = {name.replace("-", "_"): value for name, value in self.options.items()}
        self._push_timeout = seconds_of(str(given.get("push_timeout", "10m")))
        self._handle = _Handle(handle[0])
        self._finalizer = weakref.finalize(self, self._handle.close)
        self.clock = 0 if self.is_reader else self._call(lib.psd_clock)

    def _call(self, function, *arguments):
        """What a signal ended is called again, once Python's handler has run, unless it raised or closed the client."""
        while True:
            with self._handle as c:
                status = function(c, *arguments)
                if status != -errno.EINTR:
                    return check(status)

    def _table_number(self, table):
        """Of one of this client's tables: another's numbers are other tables."""
        if not isinstance(table, Table):
            raise UsageError(f"a table is a {type(table).__name__}; expected one of Client.table()")
        if table.client is not self:
            raise UsageError(f"table {table.name!r} is another client's: make it here with table()")
        return table._number

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and not self.is_reader and not self.closed:
            self.leave()
        self.close()

    def __reduce__(self):
        raise ForkError("a psd.Client cannot be pickled: it belongs to its process; open one there with psd.connect()")

    def __repr__(self):
        return f"<psd.Client {self.url}{' closed' if self.closed else ''}>"

    @property
    def closed(self):
        return self._handle.pointer is None

    def close(self):
        """Ends all waits with Cancelled, and drops what is under way: flush() first. A worker that has not left counts
        as lost."""
        self._finalizer()

    def leave(self, timeout=None):
        """Flushes, and says goodbye: the other workers no longer wait for this one. Only close(), notices() and
        stats() may follow."""
        sliced(lambda ms: self._try(lib.psd_leave, ms), self._push_timeout if timeout is None else timeout)

    def flush(self, timeout=None):
        """Waits until all pushes are acknowledged, up to timeout seconds (None: push-timeout). Timeout, or the refusal
        of a push."""
        sliced(lambda ms: self._try(lib.psd_flush, ms), self._push_timeout if timeout is None else timeout)

    def _try(self, function, *arguments):
        with self._handle as c:
            return function(c, *arguments)

    def resume(self):
        """After Fenced: goes on as a new worker; what was under way is dropped. Returns the clock to go on at."""
        self.clock = self._call(lib.psd_resume)
        return self.clock

    def table(self, name, dim=None, **spec):
        """The table `name` of this job. dim=None: it has to be there (NoSuchTable). Else it is made, or has to have
        the same specification (SpecError); psd.h's psd_table() has the words: optimizer="adagrad", lr=0.01,
        init="uniform", seed=1, floats=N (dense) ..."""
        if dim is None and spec and "floats" not in spec:
            raise UsageError(f"table {name!r}: {next(iter(spec))} is given, and no dim")
        if not isinstance(name, str) or "\0" in name:
            raise UsageError(f"a table is named {name!r}; expected a text")
        text = ffi.NULL if dim is None and not spec else words({"dim": dim, **spec})
        number = self._call(lib.psd_table, name.encode(), text)
        if number not in self._tables:
            self._tables[number] = Table(self, number)
        return self._tables[number]

    def pull(self, sections, clock=None, codec="fp32", present=False):
        """Starts one pull of several tables, and returns a Pull whose wait() has an array for each section.

        sections: (table, keys), (table, keys, out) or (table, keys, out, codec): keys int64 or uint64 [n], ascending,
        each once (psd.unique()); out float32 [n][dim], C-contiguous, written in place. clock: the step that it is for;
        None: the client's. present: wait() also says which keys have a row."""
        rows = ffi.new("psd_rows[]", max(1, len(sections)))
        op, results, bits, kept, number = ffi.new("psd_op *"), [], [], [], codec_number(codec)
        for row, section in zip(rows, sections):
            table, keys = section[0], as_keys(section[1])
            table_number = self._table_number(table)
            if keys.ndim != 1:
                raise UsageError(f"{table.name}: keys have the shape {list(keys.shape)}; expected one dimension")
            shape = (len(keys), table.dim)
            out = np.empty(shape, np.float32) if len(section) < 3 else check_out(section[2], shape)
            row.size, row.table, row.n = ffi.sizeof("psd_rows"), table_number, len(keys)
            row.keys, row.rows = address(keys, "uint64_t *"), address(out, "float *")
            row.codec = number if len(section) < 4 else codec_number(section[3])
            results.append(out)
            if present:
                bits.append(np.zeros((len(keys) + 7) // 8, np.uint8))
                row.present = address(bits[-1], "uint8_t *")
            kept.append((keys, out, bits))
        self._call(lib.psd_pull, self.clock if clock is None else clock, rows, len(sections), op)
        self._handle.borrowed[op[0]] = kept
        return Pull(self._handle, op[0], results, bits)

    def push(self, sections, tick=False, clock=None, samples=1, codec="fp32", assign=False, topk=0):
        """Sends gradients (assign=True: weights) of several tables; returns before they are acknowledged.

        sections: (table, keys, rows) or (table, keys, rows, codec): keys as in pull(), rows float32 [n][dim]. tick:
        this worker has finished step `clock` (None: the client's, which then is the next). NotFiniteError and other
        refusals of an earlier push are raised once, by a later call."""
        rows = ffi.new("psd_rows[]", max(1, len(sections)))
        kept, number = [], codec_number(codec)
        for row, (table, keys, values, *own) in zip(rows, sections):
            row.table, keys = self._table_number(table), as_keys(keys)
            values = as_rows(values, (keys.size, table.dim), f"{table.name}: rows")
            row.size, row.n = ffi.sizeof("psd_rows"), keys.size
            row.keys, row.rows = address(keys, "uint64_t *"), address(values, "float *")
            row.codec = codec_number(own[0]) if own else number
            row.op, row.topk = lib.PSD_ASSIGN if assign else lib.PSD_GRADIENT, topk
            kept.append((keys, values))
        at = self.clock if clock is None else clock
        self._call(lib.psd_push, at, samples, lib.PSD_TICK if tick else 0, rows, len(sections))
        if tick:
            self.clock = at + 1

    def tick(self, samples=1):
        """This worker has finished its step; the clock is the next."""
        self.push([], tick=True, samples=samples)

    def checkpoint(self, timeout=None):
        """Has every node write a checkpoint. Returns their numbers, a tuple with one for each node."""
        numbers = ffi.new("uint64_t[]", 1024)
        n = self._call(lib.psd_checkpoint, numbers, 1024, -1 if timeout is None else int(timeout * 1000))
        return tuple(int(numbers[i]) for i in range(n))

    def drop(self, job=None, timeout=None):
        """Drops a job's tables on all nodes, with their rows: those named JOB/..., and the table JOB. None: the
        client's own job. Returns {"tables": N, "rows": N, "bytes": N}.

        Busy: the job has workers; leave() first, or drop with a reader's client. Tables of theirs that clients still
        have are gone (NoSuchTable); table() makes them anew."""
        if job is None:
            job = self.url.split("://", 1)[1].partition("/")[2]
        if not isinstance(job, str) or "\0" in job or not job:
            raise UsageError(f"a job is named {job!r}; expected a text")
        dropped = ffi.new("psd_dropped *", {"size": ffi.sizeof("psd_dropped")})
        self._call(lib.psd_drop, job.encode(), dropped, -1 if timeout is None else milliseconds(timeout))
        return {"tables": int(dropped.tables), "rows": int(dropped.rows), "bytes": int(dropped.bytes)}

    def stats(self):
        """Counters since connect(), by the names of struct psd_stats."""
        stats = ffi.new("psd_stats *", {"size": ffi.sizeof("psd_stats")})
        self._call(lib.psd_get_stats, stats)
        return {name: int(getattr(stats, name)) for name, _ in ffi.typeof("psd_stats").fields if name != "size"}

    @property
    def cache_stats(self):
        """Of a reader with cache=, since connect(), by the names of struct psd_cache_stats: hits, misses, evictions, rows,
        bytes, oldest_age_ns ... Without a cache, zeros."""
        stats = ffi.new("psd_cache_stats *", {"size": ffi.sizeof("psd_cache_stats")})
        self._call(lib.psd_get_cache_stats, stats)
        return {name: int(getattr(stats, name)) for name, _ in ffi.typeof("psd_cache_stats").fields
                if name not in ("size", "reserved")}

    def notices(self):
        """Sentences about what happened meanwhile: connections lost and found, lost pushes, slow servers."""
        text, found = ffi.new("char[]", 1024), []
        while self._call(lib.psd_notice, text, 1024):
            found.append(ffi.string(text).decode(errors="replace"))
        return found

    def unique(self, keys):
        """As psd.unique(), in memory that the client keeps."""
        with self._handle as c:
            return _unique(c, keys)


class Table:
    """A table of a client: Client.table(). `name`, `dim`, `n_floats` (of a dense one, else 0), `optimizer`, `lr`, and
    `n_state`, the floats of a row's optimizer state."""

    def __init__(self, client, number):
        info = ffi.new("psd_table_info *", {"size": ffi.sizeof("psd_table_info")})
        client._call(lib.psd_get_table, number, info)
        self.client, self._number = client, number
        self.name, self.optimizer = ffi.string(info.name).decode(), ffi.string(info.optimizer).decode()
        self.dim, self.n_floats, self.lr = int(info.dim), int(info.n_floats), float(info.lr)
        self.n_state = int(info.n_state)

    def __repr__(self):
        return f"<psd.Table {self.name} dim={self.dim}>"

    def __reduce__(self):
        raise ForkError("a psd.Table cannot be pickled: it belongs to its process")

    def pull(self, keys, out=None, timeout=None, codec="fp32", present=False):
        """The rows of keys, in any order and repeated: float32, the shape of keys and then dim. A key without a row
        has its initial weights. Keys that ascend, each once, are received in place; out: then float32 [n][dim].
        present=True: returns a pair, the rows and bool in the shape of keys, which of them have a row."""
        keys = as_keys(keys)
        flat = keys.reshape(-1)
        if ascends(flat):
            out = np.empty((flat.size, self.dim), np.float32) if out is None else out
            found, = self.client.pull([(self, flat, out)], codec=codec, present=present).wait(timeout)
            rows, has_row = found if present else (found, None)
        elif out is not None:
            raise UsageError("out is given, and the keys do not ascend, each once: psd.unique() makes them so")
        else:
            different, inverse = self.client.unique(flat)
            found, = self.client.pull([(self, different)], codec=codec, present=present).wait(timeout)
            rows, has_row = found if present else (found, None)
            rows, has_row = rows[inverse], has_row[inverse] if present else None
        rows = rows.reshape(keys.shape + (self.dim,))
        return (rows, has_row.reshape(keys.shape)) if present else rows

    def pull_async(self, keys, out=None, clock=None, codec="fp32", present=False):
        """A Pull of keys that ascend, each once."""
        return self.client.pull([(self, keys) if out is None else (self, keys, out)], clock, codec, present)

    def _flat(self, keys, rows, what):
        keys = as_keys(keys)
        rows = as_rows(rows, keys.shape + (self.dim,), f"{self.name}: {what}")
        return keys.reshape(-1), rows.reshape(-1, self.dim)

    def push(self, keys, gradients, tick=False, samples=1, codec="fp32"):
        """One step of the table's optimizer for each key: gradients float32, the shape of keys and then dim. Those of
        a repeated key are summed."""
        keys, gradients = self._flat(keys, gradients, "gradients")
        if not ascends(keys):
            keys, inverse = self.client.unique(keys)
            summed = np.zeros((len(keys), self.dim), np.float32)
            np.add.at(summed, inverse, gradients)
            gradients = summed
        self.client.push([(self, keys, gradients)], tick=tick, samples=samples, codec=codec)

    def assign(self, keys, rows, state=None, steps=0):
        """Sets weights, of rows that are there and of new ones, any number of them. keys in any order, each once; rows
        float32, the shape of keys and then dim. It is no step of training, and moves no clock; flush() waits until all
        is safe.

        state: float32, the shape of keys and then n_state: the optimizer's of each row, as scan(state=True) has it;
        None: it begins anew. steps: with state, the table's step count becomes this, if it is less (Scan.steps).

        NotFiniteError, before anything is sent: NaN or infinity; the sentence has the key. UsageError: wrong dtype,
        shape, or a reader's client. An error of a server, or KeyboardInterrupt, may leave the first rows assigned."""
        shape = as_keys(keys).shape
        keys, rows = self._flat(keys, rows, "rows")
        if state is not None:
            state = as_rows(state, shape + (self.n_state,), f"{self.name}: state").reshape(len(keys), self.n_state)
        elif steps:
            raise UsageError(f"{self.name}: steps are given, and no state")
        if not isinstance(steps, (int, np.integer)) or not 0 <= steps < 1 << 48:
            raise UsageError(f"{self.name}: {steps!r} steps; expected a number of 0 or more")
        if not ascends(keys):
            order = np.argsort(keys, kind="stable")
            keys, rows, state = keys[order], rows[order], None if state is None else state[order]
            if not ascends(keys):
                raise UsageError(f"{self.name}: a key stands twice: which row it gets is not clear")
        self._assign(keys, rows, state, steps)

    def _assign(self, keys, rows, state, steps):
        row = ffi.new("psd_rows *", {"size": ffi.sizeof("psd_rows"), "table": self._number})
        n_done, is_first = 0, True
        while n_done < len(keys) or is_first:
            row.n, row.keys = min(len(keys) - n_done, KEYS_MAX), address(keys[n_done:], "uint64_t *")
            row.rows = address(rows[n_done:], "float *")
            if state is not None:
                row.state, row.steps = address(state[n_done:], "float *"), int(steps)
            n_done += self.client._call(lib.psd_assign, row)
            is_first = False

    def scan(self, batch=None, state=False, timeout=None):
        """All rows, each key once, while the table is trained or not: an iterator of (keys, rows), uint64 [n] and
        float32 [n][dim]; state=True: of (keys, rows, state), with float32 [n][n_state]. The keys come in no order; the
        arrays are copies of the caller's own.

            with table.scan(batch=100000) as scan:
                for keys, rows in scan: ...

        batch: rows of each but the last; None: as they come, at most 256 KiB of each shard. Weights are those of the
        beginning, or of a later moment. Keys that get or lose their row meanwhile come once or not at all.

        timeout: seconds for the servers' next answer; None: pull-timeout. Timeout, KeyboardInterrupt, ConnectionLost
        and the like lose nothing: next() goes on, also behind restarts of servers. Error with status -ESTALE: a server
        has restarted without pushes that had come; scan again."""
        return Scan(self, batch, state, timeout)

    def drop(self, timeout=None):
        """Drops this table on all nodes, with its rows. As Client.drop()."""
        return self.client.drop(self.name, timeout)


def _unique(c, keys):
    flat = as_keys(keys).reshape(-1)
    different, inverse = np.empty(flat.size, np.uint64), np.empty(flat.size, np.int64)
    n = check(lib.psd_unique(c, address(flat, "uint64_t *"), flat.size, address(different, "uint64_t *"),
                             address(inverse, "int64_t *")))
    return different[:n], inverse


def unique(keys):
    """The different keys, uint64 ascending, and int64 [n]: where each of keys is among them. keys: int64 or uint64,
    any shape."""
    return _unique(ffi.NULL, keys)
