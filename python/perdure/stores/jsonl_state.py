"""What a JSONL store knows of its folder: built at open from the histories, kept by the batches (spec 7.3, R12, R51)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Final

from perdure.errors import OutcomeUnknown, Serialization, StoreError
from perdure.payload import decode
from perdure.rebuild import IndexRebuilder, Unreadable
from perdure.stores.index import MemoryIndex
from perdure.stores.jsonl_folder import JsonlFolder
from perdure.stores.jsonl_lines import events, line_number, scan
from perdure.stores.leases import NEW

__all__ = ["JsonlState", "Log", "loaded"]

_log = logging.getLogger("perdure")
_READ_BYTES: Final = 16 * 1024 * 1024
"""How much of the logs is in memory at a time while the index is built."""
_OPEN_FILES: Final = 256


class Log:
    """A run's file. Its first `end` bytes are never written again."""

    __slots__ = ("end", "terminated", "torn")

    def __init__(self, end: int = 0, terminated: bool = True, torn: bool = False) -> None:
        self.end = end
        self.terminated = terminated
        """Whether those bytes end with a newline."""
        self.torn = torn
        """Whether bytes follow that do not count."""


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
    if not folder.was_closed:
        _make_durable(folder, run_ids)
    state.spellings = {run_id.lower(): run_id for run_id in (*state.index.tombstones, *run_ids)}
    for part in _parts(folder, run_ids):
        _load(state, folder, rebuilder, part)
    _load_holds(state, folder)
    return state


def _make_durable(folder: JsonlFolder, run_ids: list[str]) -> None:
    """What a killed owner left may be seen without being on the disk; nothing may be built on it until it is."""
    for first in range(0, len(run_ids), _OPEN_FILES):
        with ExitStack() as files:
            logs = [
                files.enter_context(folder.file(run_id, ".jsonl").open("rb"))
                for run_id in run_ids[first:][:_OPEN_FILES]
            ]
            folder.sync_files([log.fileno() for log in logs])
    folder.sync()


def _parts(folder: JsonlFolder, run_ids: list[str]) -> Iterator[list[tuple[str, bytes]]]:
    part: list[tuple[str, bytes]] = []
    size = 0
    for run_id in run_ids:
        data = folder.file(run_id, ".jsonl").read_bytes()
        part.append((run_id, data))
        size += len(data)
        if size >= _READ_BYTES:
            yield part
            part, size = [], 0
    yield part


def _load(state: JsonlState, folder: JsonlFolder, rebuilder: IndexRebuilder, part: list[tuple[str, bytes]]) -> None:
    whole: dict[str, bytes] = {}
    for run_id, data in part:
        found = scan(data, rebuilder.is_json)
        state.logs[run_id] = Log(found.end, found.terminated, found.end < len(data))
        if found.damaged is not None:
            _set_apart(state, folder, run_id, found.damaged, "no torn write leaves such a line")
        elif found.end:
            whole[run_id] = data[: found.end]
    histories = [(run_id, lines) for run_id, data in whole.items() if (lines := events(data))]
    for (run_id, _), batch in zip(histories, rebuilder.rebuild(histories), strict=True):
        if isinstance(batch, Unreadable):
            _set_apart(state, folder, run_id, line_number(whole[run_id], batch.line), _reason(batch))
        else:
            state.index.apply(batch)
            # Nothing about leases is on disk: every open run can be claimed once (R12).
            state.index.leases[run_id] = NEW._replace(claim_at=None) if batch.row.terminal else NEW


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
