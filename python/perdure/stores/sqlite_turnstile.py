"""Whose turn it is to write an SQLite file: locks beside it, which the kernel takes back from whoever dies (R48).

SQLite's own lock is taken by whoever asks at the right moment, so a busy process starves the others. Here a process goes
through the gate first and waits at the writer's lock then, so that the next one is known before the last one is done.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Final

from perdure.errors import StoreError

with suppress(ModuleNotFoundError):  # Windows has none; who works there has the other stores
    import fcntl

__all__ = ["LockFile", "OwnTurn", "Turnstile", "holder_of"]

_NOW: Final = 6  # LOCK_EX and LOCK_NB
_PROC_LOCKS: Final = Path("/proc/locks")
_open: weakref.WeakSet[LockFile] = weakref.WeakSet()


class LockFile:
    """A file that one at a time may lock: one object, whichever process it is in. Made where it is missing, and left there.

    Raises `StoreError` where it cannot be used."""

    _descriptor = -1

    def __init__(self, database: str, suffix: str) -> None:
        self.path = os.path.realpath(database) + suffix  # as SQLite does for its log: two names of a file, one lock
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CREAT, _mode_of(database))
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened ({error.strerror}); see who may write there") from None
        _open.add(self)

    def __del__(self) -> None:
        self.close()  # of a store that nobody closed

    def lock(self, *, wait: bool) -> bool:
        """Whether it is ours now; without `wait` it may be another's. Raises `StoreError`."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if wait else _NOW)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be locked ({error.strerror}); put the database on a local file system"
            ) from None
        return True

    def unlock(self) -> None:
        """Lets the next one in."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unlocks it and gives it up. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _mode_of(database: str) -> int:
    """Who may use the database may use its locks."""
    file = Path(database)
    return file.stat().st_mode & 0o666 if file.exists() else 0o666


def _let_go_in_a_fork() -> None:
    # A child shares the parent's locks: left open here, they would outlive a parent that was killed while it held one.
    for lock in _open:
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_fork)


class Turnstile:
    """The gate and the writer's lock of one database. Used by one thread at a time."""

    def __init__(self, database: str) -> None:
        self._gate = LockFile(database, ".gate")
        self._writer = LockFile(database, ".writer")
        self._state = Condition()
        self._waiting = False
        self._wanted = False
        self._ours = False
        self._broken: StoreError | None = None
        self._closed = False

    def take(self, seconds: float) -> bool:
        """Whether it is our turn, waiting up to `seconds`, 0 for not at all. Raises `StoreError`."""
        if not self._waiting and self._take_at_once():
            return True
        if seconds <= 0:
            return False
        with self._state:
            if not self._waiting:
                # Nothing in Python ends a wait for a lock, so a thread waits that may be left behind.
                self._waiting = True
                Thread(target=self._wait, name="perdure-sqlite-turnstile", daemon=True).start()
            self._wanted = True
            came = self._state.wait_for(lambda: self._ours or self._broken is not None, seconds)
            self._wanted = self._ours = False
            broken, self._broken = self._broken, None
        if broken is not None:
            raise StoreError(broken.detail)
        return came

    def release(self) -> None:
        """Ends our turn."""
        self._writer.unlock()

    def holders(self) -> str:
        """Who has the writer's lock, or, if it is free, the gate."""
        return holder_of(self._writer.path) or holder_of(self._gate.path) or "another program holds it"

    def close(self) -> None:
        """Gives the locks up."""
        with self._state:
            self._closed = True
            if not self._waiting:
                self._give_up()

    def _take_at_once(self) -> bool:
        return self._gate.lock(wait=False) and self._through(wait=False)

    def _through(self, *, wait: bool) -> bool:
        """From the gate, which is ours, to the writer's lock; whether that is ours then. The gate is free again, come what
        may: it would keep all others out for ever."""
        try:
            return self._writer.lock(wait=wait)
        finally:
            self._gate.unlock()

    def _wait(self) -> None:
        broken: StoreError | None = None
        try:
            self._gate.lock(wait=True)
            self._through(wait=True)
        except StoreError as error:
            broken = error
        with self._state:
            if self._closed:
                self._give_up()
            elif broken is not None:
                self._broken = broken if self._wanted else None
                self._state.notify()
            elif self._wanted:
                self._ours = True
                self._state.notify()
            else:
                self._writer.unlock()
            self._waiting = False  # last: from now on the locks are taken without this thread

    def _give_up(self) -> None:
        self._writer.close()
        self._gate.close()


class OwnTurn:
    """The turns at a database in the memory of this process, which reads and writes share one connection to."""

    def __init__(self) -> None:
        self._lock = Lock()

    def take(self, seconds: float) -> bool:
        """Whether it is our turn. Nobody keeps it for long, so who may wait, waits."""
        return self._lock.acquire(blocking=seconds > 0)

    def release(self) -> None:
        """Ends our turn."""
        self._lock.release()

    def holders(self) -> str:
        """As `Turnstile.holders`."""
        return "another thread holds it"

    def close(self) -> None:
        """As `Turnstile.close`."""


def holder_of(path: str, offset: int | None = None) -> str | None:
    """Which process holds a lock of the file (on the byte at `offset`, if given), in words; None if none is known to."""
    try:
        inode = Path(path).stat().st_ino
        lines = _PROC_LOCKS.read_text("ascii").splitlines()
    except OSError:  # not on Linux
        return None
    for line in lines:
        fields = line.split()
        if "->" in fields or len(fields) < 8 or not fields[5].endswith(f":{inode}"):
            continue
        if offset is not None and not int(fields[6]) <= offset <= _end(fields[7]):
            continue
        return f"process {fields[4]}{_name_of(fields[4])} holds {path}"
    return None


def _end(field: str) -> int:
    return 1 << 63 if field == "EOF" else int(field)


def _name_of(pid: str) -> str:
    if int(pid) == os.getpid():
        return " (this one)"
    try:
        return f" ({Path('/proc', pid, 'comm').read_text('utf-8', 'replace').strip()})"
    except OSError:
        return ""
