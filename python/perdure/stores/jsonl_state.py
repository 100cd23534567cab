"""What a JSONL store knows of its folder: built at open from the histories, kept by the batches (spec 7.3, R12, R51)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from perdure.errors import OutcomeUnknown, Serialization, StoreError
from perdure.kernel import Batch
from perdure.payload import decode
from perdure.rebuild import IndexRebuilder, Unreadable
from perdure.stores.index import MemoryIndex
from perdure.stores.jsonl_folder import JsonlFolder
from perdure.stores.jsonl_lines import is_blank, scan, unmarked

__all__ = ["JsonlState", "Log", "loaded"]

_log = logging.getLogger("perdure")
_RECENT: Final = 16
"""Commits of a run whose places are remembered."""


class Log:
    """A run's file. Its first `end` bytes are never written again."""

    __slots__ = ("end", "recent", "terminated", "torn")

    def __init__(self, end: int = 0, terminated: bool = True, torn: bool = False) -> None:
        self.end = end
        self.terminated = terminated
        """Whether those bytes end with a newline."""
        self.torn = torn
        """Whether bytes follow that do not count."""
        self.recent: tuple[tuple[int, int], ...] = ()
        """The last commits of this process: the first sequence of each and where it begins."""

    def took(self, first_sequence: int, size: int) -> None:
        """A commit was written at the end."""
        self.recent = (*self.recent[1 - _RECENT :], (first_sequence, self.end))
        self.end += size
        self.terminated = True

    def place_of(self, sequence: int) -> tuple[int, int]:
        """A commit, by its first sequence and where it begins, from which on all events from `sequence` on are found: whoever
        asks for the tail of a long history, most often for what was just committed, has not to read all of it."""
        return next((place for place in reversed(self.recent) if place[0] <= sequence), (1, 0))


class JsonlState:
    """Index, logs and what is wrong with them. What is read outside the writing thread is read, and changed, under `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.index = MemoryIndex()
        self.logs: dict[str, Log] = {}
        self.damaged: dict[str, str] = {}
        """Runs whose log cannot be read, with what is wrong; their files are left alone."""
        self.spellings: dict[str, str] = {}
        """Every run id that has a file, by its lower case (R34)."""
        self.failed: StoreError | None = None
        """What every later call raises."""

    def check(self, run_id: str | None = None) -> None:
        """Raises what stands in the way of an answer, or of one about this run."""
        if self.failed is not None:
            raise type(self.failed)(self.failed.detail)
        if run_id in self.damaged:
            raise StoreError(self.damaged[run_id])

    def poison(self, detail: str) -> OutcomeUnknown:
        """Ends the store: what is on disk is unknown. Returns the error to raise."""
        self.failed = OutcomeUnknown(detail)
        return OutcomeUnknown(detail)


def loaded(folder: JsonlFolder, rebuilder: IndexRebuilder) -> JsonlState:
    """The state of a folder. A run whose log is damaged is set apart and logged; the others are there.

    Raises `StoreError` for a hold that cannot be read, and `OSError`."""
    state = JsonlState()
    state.index.tombstones.update(folder.runs_with(".tombstone.json"))
    run_ids = folder.runs_with(".jsonl")
    state.spellings = {run_id.lower(): run_id for run_id in (*state.index.tombstones, *run_ids)}
    state.index.fill(_whole_runs(state, folder, rebuilder, run_ids))
    _load_holds(state, folder)
    return state


def _whole_runs(
    state: JsonlState, folder: JsonlFolder, rebuilder: IndexRebuilder, run_ids: Sequence[str]
) -> Iterator[Batch]:
    """Each run that can be read and has events, as one batch."""
    for part in folder.logs(run_ids):
        histories = [(id, lines) for id, data in part if (lines := _counted(state, folder, rebuilder, id, data))]
        for (run_id, _), batch in zip(histories, rebuilder.rebuild(histories), strict=True):
            if isinstance(batch, Unreadable):
                _set_apart(state, folder, run_id, batch.line + 1, _reason(batch))
            else:
                yield batch


def _counted(state: JsonlState, folder: JsonlFolder, rebuilder: IndexRebuilder, run_id: str, data: bytes) -> bytes:
    """Those lines of a log that count, b"" if there is no event among them."""
    found = scan(data, rebuilder.is_json)
    state.logs[run_id] = Log(found.end, found.terminated, found.end < len(data))
    if found.damaged is not None:
        _set_apart(state, folder, run_id, found.damaged, "no torn write leaves such a line")
        return b""
    lines = data[: found.end]
    return b"" if is_blank(lines) else unmarked(lines)


def _set_apart(state: JsonlState, folder: JsonlFolder, run_id: str, line: int, reason: str) -> None:
    file = folder.file(run_id, ".jsonl")
    state.damaged[run_id] = (
        f"line {line} of {file} cannot be read ({reason}); the file was left as it is. "
        "Restore it from a backup, or move it out of the folder, and open the store again"
    )
    _log.error("%s", state.damaged[run_id])


def _reason(refused: Unreadable) -> str:
    error = refused.error
    if isinstance(error, Serialization):  # its own line number is that of the bytes it was given
        return f"{error.rule}: {error.detail}"
    return str(error)


def _load_holds(state: JsonlState, folder: JsonlFolder) -> None:
    for run_id in folder.runs_with(".hold.json"):
        run = state.index.state(run_id)
        if state.index.exists(run_id) and not run.terminal:
            hold = _hold(folder.file(run_id, ".hold.json"))
            state.index.leases[run_id] = run.lease._replace(hold=hold, claim_at=None)


def _hold(file: Path) -> str:
    text = file.read_bytes().strip()
    try:
        if isinstance(decode(text), dict):
            return text.decode()
    except Serialization:
        pass  # refused below, with what is no object
    raise StoreError(f"{file} is no run hold; restore it, or delete it to release the run, and open the store again")
