"""Checkpoints of an SQLite file, off the commit path, by one of the processes that have it open (R48).

Commits append to the log, and begin it anew once all of it has been copied into the database and nobody reads it any more.
Whoever holds `<db>.checkpoint` copies it every second, or every 4 MiB: most of it beside the commits, and the last bit between
two of them, or there would always be a bit left and the log would grow for ever. What old readers made long is cut off.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Final

from perdure.errors import StoreError
from perdure.stores.sqlite_file import SqliteFile
from perdure.stores.sqlite_turnstile import LockFile, OwnTurn, Turnstile

__all__ = ["Checkpointer"]

_log = logging.getLogger("perdure")
_LOOK_SECONDS: Final = 0.1
_EVERY_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 0.2
"""From a try that met an old reader to the next: readers who come and go leave short gaps."""
_MEBIBYTE: Final = 1024 * 1024
_GROWN: Final = 4 * _MEBIBYTE
_LONG: Final = 32 * _MEBIBYTE
_DESERTED: Final = 256 * _MEBIBYTE
"""Whoever is elected does not cut a log this long, being stopped perhaps: all who have the file open try."""
_FRAME: Final = 4096 + 24
_FEWEST: Final = 2.0
"""Frames of a transaction: a page of the run's row and one of its lines, without a page of an index."""
_MANY: Final = 64.0
"""Frames that a transaction is taken to have until the first ones were counted."""
_HEADER: Final = 32
_PASSES: Final = 3


class Checkpointer:
    """Keeps the log of `file` short, in a thread of its own, from `start` to `close`. Raises `StoreError` where the lock
    cannot be used."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._wal = Path(f"{os.path.realpath(file.path)}-wal")
        self._duty = LockFile(file.path, ".checkpoint")
        self._turns: Turnstile | OwnTurn = Turnstile(file.path)
        self._elected = False
        self._commits = 0
        self._commit_frames = _MANY
        """What one has added to the log of late, taking what others wrote for our own."""
        self._last = (b"", 0)
        """The beginning of the log at the last checkpoint, and its length in frames."""
        self._seen = (0, 0)
        """Size and time of the log before the last checkpoint that copied all of it."""
        self._tried = 0.0
        self._read_until = 0.0
        """When to look again whether an old reader has gone."""
        self._failing = False
        self._stopping = False
        self._wake = Event()
        self._thread = Thread(target=self._run, name="perdure-sqlite-checkpointer", daemon=True)

    def start(self) -> None:
        """Begins to look after the log."""
        self._thread.start()

    def wrote(self) -> None:
        """Hears of a transaction of this process: the size of the log says little once it is written over."""
        self._commits += 1
        if self._commits * self._commit_frames * _FRAME >= _GROWN:
            self._wake.set()

    def stop(self) -> None:
        """Ends it soon."""
        self._stopping = True
        self._wake.set()

    def close(self) -> None:
        """Ends it, and lets another process take over."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._duty.close()
        self._turns.close()

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None  # most processes never need one
        try:
            seen = (0, 0)
            while not self._stopping:
                before, seen = seen, self._state_of_the_log()
                self._wake.wait(_EVERY_SECONDS if seen == before else _LOOK_SECONDS)
                self._wake.clear()
                if self._is_due():
                    connection = self._try(connection)
        except (OSError, StoreError) as error:
            _log.warning("%s: no checkpoints by this process (%s)", self._file, error)
        finally:
            if connection is not None:
                connection.close()
            if self._elected:
                self._duty.unlock()  # another process can do it

    def _is_due(self) -> bool:
        size, _ = state = self._state_of_the_log()
        if self._stopping or state == self._seen:
            return False
        now = monotonic()
        grown = max(self._commits * self._commit_frames * _FRAME, size - self._seen[0])
        if grown < _GROWN and now < self._tried + _EVERY_SECONDS:
            return False
        self._elected = self._elected or self._duty.lock(wait=False)
        if now >= self._read_until and (self._elected or size >= _DESERTED):
            return True
        self._commits = 0  # or each commit would wake this thread for nothing
        return False

    def _try(self, connection: sqlite3.Connection | None) -> sqlite3.Connection | None:
        """Gives the connection it has used, made where there was none."""
        self._tried = monotonic()
        try:
            connection = connection or self._file.open_checkpointer()
            self._checkpoint(connection)
            self._failing = False
        except sqlite3.Error as error:
            # Nothing is lost by it: all of it is still in the log.
            if not self._failing:
                _log.warning("%s: a checkpoint failed (%s); it is tried again every second", self._file, error)
            self._failing = True
        return connection

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        state = size, _ = self._state_of_the_log()
        beginning = self._beginning_of_the_log()
        commits, self._commits = self._commits, 0
        frames, copied = _passive(connection)
        if commits:
            self._commit_frames = max((frames - self._frames_of(beginning)) / commits, _FEWEST)
        for _ in range(_PASSES):
            if (frames - copied) * _FRAME < _GROWN:
                break
            frames, copied = _passive(connection)  # the less is left, the shorter the others wait
        is_long = size >= _LONG
        if frames * _FRAME >= _GROWN / 2 or is_long:
            if not self._turns.take(_EVERY_SECONDS):
                return
            try:
                frames, copied = _truncated(connection) if is_long else _passive(connection)
            finally:
                self._turns.release()
            if frames != copied:
                self._read_until = monotonic() + _AGAIN_SECONDS
        self._last = beginning, frames
        self._seen = state if frames == copied else (size, 0)

    def _frames_of(self, beginning: bytes) -> int:
        """How long the log with this beginning was at the last checkpoint."""
        return self._last[1] if beginning == self._last[0] else 0

    def _beginning_of_the_log(self) -> bytes:
        """What is different each time that the log was begun anew: its number and salts, in its header."""
        try:
            with self._wal.open("rb") as log:
                return log.read(_HEADER)
        except FileNotFoundError:
            return b""

    def _state_of_the_log(self) -> tuple[int, int]:
        try:
            found = self._wal.stat()
        except FileNotFoundError:
            return (0, 0)
        return (found.st_size, found.st_mtime_ns)


def _passive(connection: sqlite3.Connection) -> tuple[int, int]:
    _, frames, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return frames, copied


def _truncated(connection: sqlite3.Connection) -> tuple[int, int]:
    blocked, frames, copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return (frames, copied) if not blocked else (1, 0)
