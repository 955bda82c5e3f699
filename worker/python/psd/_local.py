"""A psd of this process's own, for tests and notebooks."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from ._errors import ConnectionLost, Error, UsageError

READY = re.compile(rb"psd ready: listening on (\S+):(\d+)")
# psd itself is this process's child. A subshell beside it holds the end of a pipe, which closes when this process
# ends, however it ends; then it stops psd, and removes the temporary folder ($2). PR_SET_PDEATHSIG would do so when a
# thread ends.
SCRIPT = """
exec 3<&0 </dev/null
{ read -r _ <&3
  [ "$(cat /proc/$$/comm 2>/dev/null)" = "$1" ] && kill -TERM $$
  n=0; while [ "$(cat /proc/$$/comm 2>/dev/null)" = "$1" ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
  [ "$(cat /proc/$$/comm 2>/dev/null)" = "$1" ] && kill -KILL $$
  [ -z "$2" ] || rm -rf "$2"
} 2>/dev/null &
exec 3<&-
shift 2
exec "$@"
"""


def find_psd():
    """PSD_BIN (the program, or its folder), else beside the package, else on PATH."""
    named = os.environ.get("PSD_BIN")
    if named:
        path = pathlib.Path(named)
        return str(path / "psd" if path.is_dir() else path)
    beside = pathlib.Path(__file__).parent / "bin" / "psd"
    found = str(beside) if beside.exists() else shutil.which("psd")
    if not found:
        raise UsageError("there is no psd on PATH; install it, or name it in PSD_BIN")
    return found


def _temporary():
    """In memory where there is some: a start waits for no disk."""
    shm = "/dev/shm"
    has_space = os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 1 << 30
    return tempfile.mkdtemp(prefix="psd-local-", dir=shm if has_space else None)


class LocalServer:
    """A running psd: `url`, `port`, `data_dir`, `log()`. A context manager; it ends with this process at the latest."""

    def __init__(self, data_dir, shards, flags, timeout):
        self._temporary = None if data_dir else _temporary()
        self.data_dir = os.path.abspath(data_dir) if data_dir else os.path.join(self._temporary, "data")
        self._log_path = os.path.join(self._temporary or tempfile.gettempdir(), f"psd-{os.getpid()}-{id(self):x}.log")
        program = find_psd()
        flags = [f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
                 for name, value in flags.items() if value is not None and value is not False]
        command = [program, "--listen", "127.0.0.1:0", "--http", "off", "--shards", str(shards), "--data-dir",
                   self.data_dir, *flags]
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "psd.local", os.path.basename(program)[:15], self._temporary or "", *command],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        try:
            self.port = self._await_ready(time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise
        self.url = f"psd://127.0.0.1:{self.port}"

    def _await_ready(self, end):
        with open(self._log_path, "rb") as log:
            seen = b""
            while True:
                has_ended = self._process.poll() is not None
                seen += log.read()
                match = READY.search(seen)
                if match:
                    return int(match[2])
                last = seen.decode(errors="replace").strip().rpartition("\n")[2]
                if has_ended:
                    raise Error(f"psd did not start: {last or 'it ended without a word'}")
                if time.monotonic() > end:
                    raise ConnectionLost(f"psd is not ready in time: {last}")
                time.sleep(0.0005)

    @property
    def pid(self):
        return self._process.pid

    def log(self):
        """What psd has said."""
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def stop(self, timeout=10):
        """Stops psd; what was in a temporary folder is gone. Once is enough."""
        process = self._process
        if process.returncode is None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin:
            process.stdin.close()
            process.stdin = None
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
        elif os.path.exists(self._log_path):
            os.unlink(self._log_path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def __repr__(self):
        return f"<psd.local {self.url}>"


def local(data_dir=None, shards=1, timeout=30, **flags):
    """Starts a psd on a free port of this machine and returns a LocalServer; `with psd.local() as server:` stops it,
    too.

    data_dir: where it keeps its checkpoints; None: a temporary folder, removed at the end. flags: psd's, with _ for -
    (memory_max="1G"). Error: psd's own sentence when it does not start."""
    return LocalServer(data_dir, shards, flags, timeout)
