"""Statuses of libpsd as exceptions. Each holds psd's own sentence, and the number in `status`."""

import errno

from ._lib import ffi, lib


class Error(Exception):
    """What psd could not do. `status` is psd.h's number: a negative errno, or PSD_E..."""

    def __init__(self, sentence, status=0):
        super().__init__(sentence)
        self.status = status

    def __reduce__(self):
        return type(self), (str(self), self.status)


class UsageError(Error, ValueError):
    """An argument that cannot be meant: unsorted keys, an unknown option, another specification of a table, NaN."""


class SettingError(UsageError):
    """An option or a word of a table's specification is unknown, or its value is wrong."""


class SpecError(UsageError):
    """The table is there with another specification."""


class NotFiniteError(UsageError):
    """A push holds NaN or infinity. It changed nothing."""


class NoSuchTable(Error, LookupError):
    """No table has this name."""


class NoCheckpoint(Error, LookupError):
    """The servers have no such checkpoint."""


class Timeout(Error, TimeoutError):
    """The time that was given is over. What was waited for goes on."""


class ConnectionLost(Error, ConnectionError):
    """A server did not answer in its time, is stopping, or is not psd."""


class GreetingError(ConnectionLost):
    """The token is wrong, or psd does not listen there."""


class JobError(Error):
    """The job runs with another number of workers, mode or staleness, or a worker of this rank did not come in."""


class Fenced(Error):
    """The servers had declared this worker dead. Client.resume() goes on."""


class Busy(Error):
    """Somebody else is at it: the job has workers, or another thread waits for this pull or scan."""


class Cancelled(Error):
    """The client was closed, or the pull cancelled, meanwhile."""


class Closed(Cancelled, ValueError):
    """The client is closed."""


class ForkError(Error, RuntimeError):
    """The client belongs to the process that opened it. This one has to open its own."""


class MemoryFull(Error, MemoryError):
    """Memory is full: the servers', or this process's."""


class WriteError(Error, OSError):
    """A server could not do its work: its disk, its files, its data."""

    __init__ = Error.__init__


_BY_STATUS = {
    -errno.EINVAL: UsageError, -errno.ETIMEDOUT: Timeout, -errno.ECANCELED: Cancelled, -errno.ECHILD: ForkError,
    -errno.EBUSY: Busy, -errno.ENOMEM: MemoryFull, -errno.ENOSPC: MemoryFull, -errno.EIO: WriteError,
    lib.PSD_ESETTING: SettingError, lib.PSD_ESPEC: SpecError, lib.PSD_EWIDTH: SpecError, lib.PSD_ENAN: NotFiniteError,
    lib.PSD_ENOTABLE: NoSuchTable, lib.PSD_ENOCHECKPOINT: NoCheckpoint, lib.PSD_EDEADLINE: ConnectionLost,
    lib.PSD_ESTOPPING: ConnectionLost, lib.PSD_EGREETING: GreetingError, lib.PSD_EHTTP: GreetingError,
    lib.PSD_EPROTO: ConnectionLost,
    lib.PSD_EVERSION: GreetingError, lib.PSD_EJOB: JobError, lib.PSD_ENOJOIN: JobError, lib.PSD_EFENCED: Fenced,
    lib.PSD_EBUDGET: MemoryFull, lib.PSD_ECORRUPT: WriteError,
}


def error_of(status, sentence=None):
    """The exception for a status, with this thread's last sentence where none is given."""
    if not sentence:
        said = ffi.string(lib.psd_error()) or ffi.string(lib.psd_strerror(int(status)))
        sentence = said.decode(errors="replace")
    return _BY_STATUS.get(int(status), Error)(sentence, int(status))


def check(status):
    """Returns a status of 0 or more; raises for another."""
    if status < 0:
        raise error_of(status)
    return status
