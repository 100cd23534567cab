"""A folder of JSONL logs: its owner, its files, and what makes them durable (spec 7.3, R12, R43, R51)."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Literal
from weakref import WeakSet

from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.folders import make_folder, sync_folder

__all__ = ["JsonlFolder", "Suffix", "is_safe"]

Suffix = Literal[".jsonl", ".hold.json", ".history-holds.json", ".tombstone.json", ".torn"]
_LOCK: Final = "perdure.lock"
_CLOSED: Final = b"closed\n"
_SYNCS: Final = 8
_TOGETHER: Final = 256
"""Files that are open at a time."""
_READERS: Final = 4
_PART: Final = 256
_PART_BYTES: Final = 4 * 1024 * 1024
"""Threads that read logs at open, and how many logs, and about how much of them, each brings at a time."""
_PIECE: Final = 65_536
_SAFE: Final = re.compile("[A-Za-z0-9_-]+")
_sync_data: Final = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def is_safe(run_id: str) -> bool:
    """Whether the id may become a file name (spec 4.1)."""
    return _SAFE.fullmatch(run_id) is not None


_owned: WeakSet[JsonlFolder] = WeakSet()


def _let_go_in_a_fork() -> None:
    # A child shares the parent's lock: left open there, it would outlive a parent that was killed.
    for folder in list(_owned):
        folder.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_fork)


class JsonlFolder:
    """A folder that this object owns from `open` to `close`. All run ids given must be safe."""

    def __init__(self, address: str | os.PathLike[str]) -> None:
        path = os.fspath(address)
        for prefix in ("jsonl:///", "jsonl://", "jsonl:"):
            if path.startswith(prefix):
                path = path.removeprefix(prefix)
                break
        if not path:
            raise ValueError("the address of a JSONL store is empty; give a folder")
        self.path = Path(path)
        self.was_closed = False
        """Whether the last owner closed its store, so that what it wrote is on the disk."""
        self._owned: int | None = None
        self._syncing = ThreadPoolExecutor(_SYNCS, "perdure-jsonl-sync")

    def __str__(self) -> str:
        return f"JSONL folder {self.path}"

    def open(self) -> None:
        """Makes the folder where it is missing and becomes its owner.

        Raises `StoreUnavailable` naming the process that owns it, and `StoreError` if it cannot be used at all."""
        try:
            make_folder(self.path)
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(f"{self} cannot be opened ({error.strerror}); choose another folder") from None
        try:
            self._own(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._owned = descriptor
        _owned.add(self)

    def _own(self, descriptor: int) -> None:
        """Takes the lock, which ends with the process that holds it, so that no dead owner is in the way."""
        import fcntl  # here, because Windows has none and its users have the other stores

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise StoreUnavailable(
                f"{self} is in use by process {owner or 'unknown'}; a JSONL store has one owner at a time. "
                "End that process or close its store, or use an SQLite store for several processes"
            ) from None
        except OSError as error:
            raise StoreError(f"{self} cannot be locked ({error.strerror}); put it on a local file system") from None
        self.was_closed = os.read(descriptor, 32) == _CLOSED
        try:
            _replace(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise StoreUnavailable(
                f"{self} cannot be written ({error.strerror}); make room, or see who may write there"
            ) from None

    def close(self, *, durable: bool) -> None:
        """Gives the folder up; `durable` tells the next owner that all of it is on the disk. Idempotent."""
        self._syncing.shutdown(wait=True)
        if self._owned is not None:
            if durable:
                with suppress(OSError):  # a full disk: the next owner makes all of it durable once more
                    _replace(self._owned, _CLOSED)
            self.let_go()

    def let_go(self) -> None:
        """Closes this process's copy of the lock, which ends with the last copy."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None

    # files ---------------------------------------------------------------------------------------------------

    def file(self, run_id: str, suffix: Suffix) -> Path:
        """The file of a run."""
        return self.path / f"{run_id}{suffix}"

    def runs_with(self, suffix: Suffix) -> list[str]:
        """The runs that have such a file, by id; files with other names are nobody's."""
        with os.scandir(self.path) as files:
            found = [file.name.removesuffix(suffix) for file in files if file.name.endswith(suffix)]
        return sorted(filter(is_safe, found))

    def logs(self, run_ids: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
        """The logs of these runs, a part of them at a time and in no order. Threads read some way ahead of whoever looks at
        them. What a killed owner left may be seen without being on the disk, and nothing may be built on it until it is:
        all of it is made durable first. Raises `OSError`."""
        waiting = deque(run_ids[first : first + _PART] for first in range(0, len(run_ids), _PART))
        ahead: deque[tuple[Sequence[str], Future[list[tuple[str, bytes]]]]] = deque()
        with ThreadPoolExecutor(_READERS, "perdure-jsonl-load") as readers:
            while waiting or ahead:
                while waiting and len(ahead) < 2 * _READERS:
                    part = waiting.popleft()
                    ahead.append((part, readers.submit(self._read, part)))
                part, reading = ahead.popleft()
                read = reading.result()
                if len(read) < len(part):
                    waiting.appendleft(part[len(read) :])
                yield read
        if not self.was_closed:
            self.sync()

    def _read(self, run_ids: Sequence[str]) -> list[tuple[str, bytes]]:
        """The first of these logs, and at least one."""
        found: list[tuple[str, bytes]] = []
        left = _PART_BYTES
        for run_id in run_ids:
            descriptor = os.open(f"{self.path}/{run_id}.jsonl", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not self.was_closed:
                    _sync_data(descriptor)
                data = b"".join(iter(partial(os.read, descriptor, _PIECE), b""))
            finally:
                os.close(descriptor)
            found.append((run_id, data))
            left -= len(data)
            if left <= 0:
                break
        return found

    def replace(self, run_id: str, suffix: Suffix, data: bytes) -> None:
        """Makes `data` the whole of a file, durably and in one step. Raises `OSError`."""
        self.replace_all(suffix, {run_id: data})

    def replace_all(self, suffix: Suffix, contents: Mapping[str, bytes]) -> None:
        """As `replace` for many runs at once, none of whose files is there half. Raises `OSError`."""
        targets = {run_id: self.file(run_id, suffix) for run_id in contents}
        drafts = {run_id: target.with_name(f"{target.name}.new") for run_id, target in targets.items()}
        left = iter(contents)
        while part := list(islice(left, _TOGETHER)):
            with ExitStack() as files:
                opened = {run_id: files.enter_context(drafts[run_id].open("wb")) for run_id in part}
                for run_id, file in opened.items():
                    file.write(contents[run_id])
                    file.flush()
                self.sync_files([file.fileno() for file in opened.values()])
        for run_id, target in targets.items():
            drafts[run_id].replace(target)
        self.sync()

    def remove(self, run_ids: Iterable[str], *suffixes: Suffix) -> None:
        """Deletes files durably; those that are missing count as deleted. Raises `OSError`."""
        found = [
            file for run_id in run_ids for file in (self.file(run_id, suffix) for suffix in suffixes) if file.exists()
        ]
        list(self._syncing.map(Path.unlink, found))
        if found:
            self.sync()

    def keep_torn(self, run_id: str, tail: bytes) -> Path:
        """Puts aside what is about to be cut off a log. Raises `OSError`."""
        file = self.file(run_id, ".torn")
        with file.open("ab") as aside:
            aside.write(tail)
            aside.flush()
            os.fsync(aside.fileno())
        self.sync()
        return file

    def sync(self) -> None:
        """Makes the names of new files durable, and that deleted ones are gone. Raises `OSError`."""
        sync_folder(self.path)

    def sync_files(self, descriptors: list[int]) -> None:
        """Makes what was written to files durable, all at once, so that the file system can do it in one go. Raises
        `OSError`."""
        if len(descriptors) == 1:
            _sync_data(descriptors[0])
        else:
            list(self._syncing.map(_sync_data, descriptors))


def _replace(descriptor: int, data: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
