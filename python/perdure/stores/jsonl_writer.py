"""What writes the files of a JSONL store: a group of batches over files, and the files of holds (R12, R47, R48).

Each batch is atomic by its marks. A group is written in rounds, each made durable at once; a batch that rests on another of
its group goes into a later round, so that no crash leaves it there alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from perdure.errors import (
    FlowError,
    InvalidRunId,
    OutcomeUnknown,
    RunConflict,
    StoreError,
    StoreUnavailable,
)
from perdure.kernel import Batch
from perdure.stores import leases
from perdure.stores.base import ActiveHook, Append, Committed
from perdure.stores.group import Answer
from perdure.stores.jsonl_folder import JsonlFolder, is_safe
from perdure.stores.jsonl_lines import marked
from perdure.stores.jsonl_state import JsonlState, Log
from perdure.stores.pace import Pace
from perdure.stores.rules import refusal

__all__ = ["JsonlWriter"]

_log = logging.getLogger("perdure")
_LONGEST_ID: Final = 200
"""Characters of a new run's id (R34)."""
_ROUND: Final = 256
"""Batches of a round; each has its file open."""


class _Written(NamedTuple):
    """A batch that is in its file, or partly, and not yet on the disk."""

    run_id: str
    descriptor: int
    before: int
    created: bool


class JsonlWriter:
    """Used by one thread at a time. `clock` is the store's, ns. Nobody else writes there, so it is always our turn."""

    def __init__(self, folder: JsonlFolder, state: JsonlState, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._state = state
        self._clock = clock
        self._pace = Pace()

    # turns ---------------------------------------------------------------------------------------------------

    def is_quick(self) -> bool:
        """As `Turns.is_quick`."""
        return self._pace.is_quick()

    def take(self, *, wait: bool) -> bool:
        """As `Turns.take`."""
        return True

    def release(self) -> None:
        """As `Turns.release`."""

    # groups --------------------------------------------------------------------------------------------------

    def write(self, appends: Sequence[Append]) -> list[Answer]:
        """Commits batches of different runs, in run id order; refusals are among the answers.

        Raises `StoreUnavailable` or `StoreError` with nothing written, or `OutcomeUnknown`."""
        for append in appends:
            self._state.check(append.batch.run_id)
        now = self._clock()
        answers: dict[str, Answer] = {}
        waiting: list[Append] = []
        for append in sorted(appends, key=lambda append: append.batch.run_id):
            if len(waiting) == _ROUND or self._rests_on(append.batch, waiting):
                self._write_round(waiting, now, answers)
                waiting = []
            refused = self._refusal(append, now)
            if refused is None:
                waiting.append(append)
            else:
                answers[append.batch.run_id] = refused
        self._write_round(waiting, now, answers)
        return [answers[append.batch.run_id] for append in appends]

    # checks --------------------------------------------------------------------------------------------------

    def _rests_on(self, batch: Batch, earlier: Sequence[Append]) -> bool:
        """Whether one of the batches before changes how this one is judged: it makes the run that this one links to or one
        with the same id in another case, or takes or frees its token."""
        taken = {hook.token_hash for hook in batch.insert_hooks}
        spelling = batch.run_id.lower()
        if batch.expected_sequence == 0 and any(append.batch.run_id.lower() == spelling for append in earlier):
            return True
        if not taken and not batch.links:
            return False
        runs = {*batch.links, *(hook.run_id for token in taken for hook in self._state.index.find_hooks(token))}
        return any(
            append.batch.run_id in runs or not taken.isdisjoint(hook.token_hash for hook in append.batch.insert_hooks)
            for append in earlier
        )

    def _refusal(self, append: Append, now: int) -> FlowError | None:
        run_id = append.batch.run_id
        refused = refusal(append, self._state.index.state(run_id), now, self)
        if refused is not None or append.batch.expected_sequence:
            return refused
        if not is_safe(run_id):
            return InvalidRunId(run_id, "characters" if run_id else "empty")
        if len(run_id) > _LONGEST_ID:
            return InvalidRunId(run_id, "length")  # before it becomes a name that the file system cannot hold
        if self._state.spellings.get(run_id.lower(), run_id) != run_id:
            return RunConflict(run_id, "case")
        return None

    def pruned(self, run_id: str) -> bool:
        return self._state.index.pruned(run_id)

    def exists(self, run_id: str) -> bool:
        return self._state.index.exists(run_id) or run_id in self._state.damaged

    def token_owner(self, token_hash: bytes, besides: str) -> ActiveHook | None:
        return self._state.index.token_owner(token_hash, besides)

    # a round -------------------------------------------------------------------------------------------------

    def _write_round(self, appends: Sequence[Append], now: int, answers: dict[str, Answer]) -> None:
        with ExitStack() as files:
            written: list[_Written] = []
            try:
                self._drop_holds(appends, now)
                for append in appends:
                    if append.batch.lines:
                        self._append(append.batch, files, written)
            except (OSError, StoreError) as error:
                self._undo(written)
                raise self._unwritten(error, answers) from None
            self._make_durable(written)
        holds: dict[str, str] = {}
        with self._state.lock:
            for append in appends:
                answers[append.batch.run_id] = self._apply(append, now, holds)
        for run_id, hold in holds.items():
            self.keep_hold(run_id, hold)

    def _append(self, batch: Batch, files: ExitStack, written: list[_Written]) -> None:
        run_id = batch.run_id
        log = self._state.logs.get(run_id)
        descriptor = self._open(run_id, log is None)
        files.callback(os.close, descriptor)
        data = marked(batch.lines)
        if log is None:
            written.append(_Written(run_id, descriptor, 0, True))
            _write_all(descriptor, data, 0)
            return
        self._repair(run_id, descriptor, log)
        written.append(_Written(run_id, descriptor, log.end, False))
        _write_all(descriptor, data if log.terminated else b"\n" + data, log.end)

    def _open(self, run_id: str, new: bool) -> int:
        file = self._folder.file(run_id, ".jsonl")
        try:
            return os.open(file, os.O_RDWR | (os.O_CREAT | os.O_EXCL if new else 0), 0o666)
        except FileExistsError:
            raise StoreError(f"{file} came to be beside this store; open the store again to read it") from None

    def _repair(self, run_id: str, descriptor: int, log: Log) -> None:
        """Cuts a torn tail off before anything is appended, and keeps what is cut (R12)."""
        size = os.fstat(descriptor).st_size
        if log.torn:
            aside = self._folder.keep_torn(run_id, os.pread(descriptor, size - log.end, log.end))
            _log.warning("run %s: cut a torn tail of %d bytes off its log; kept in %s", run_id, size - log.end, aside)
            os.ftruncate(descriptor, log.end)
            log.torn = False
        elif size != log.end:
            file = self._folder.file(run_id, ".jsonl")
            raise StoreError(
                f"{file} has {size} bytes where this store left {log.end}: another program wrote to it. "
                "End that program and open the store again"
            )

    def _make_durable(self, written: list[_Written]) -> None:
        if not written:
            return
        began = time.perf_counter()
        try:
            self._sync(written)
        except OSError as error:
            raise self._unknown(error) from None
        self._pace.took(time.perf_counter() - began)

    def _undo(self, written: list[_Written]) -> None:
        try:
            for file in written:
                os.ftruncate(file.descriptor, file.before)
                if file.created:
                    self._folder.file(file.run_id, ".jsonl").unlink()
            self._sync(written)
        except OSError as error:
            raise self._unknown(error) from None

    def _sync(self, written: list[_Written]) -> None:
        self._folder.sync_files([file.descriptor for file in written])
        if any(file.created for file in written):
            self._folder.sync()

    def _unwritten(self, error: OSError | StoreError, answers: dict[str, Answer]) -> StoreError:
        detail = (
            error.detail if isinstance(error, StoreError) else f"{self._folder} cannot be written ({error.strerror})"
        )
        if any(isinstance(answer, Committed) for answer in answers.values()):
            return OutcomeUnknown(f"{detail}; a part of the group of commits was written before")
        if isinstance(error, StoreError):
            return error
        return StoreUnavailable(f"{detail}; nothing was written. Make room, or see who may write there")

    def _unknown(self, error: OSError) -> OutcomeUnknown:
        return self._state.poison(
            f"{self._folder} met an input/output error ({error.strerror}) while committing, so what is on disk is unknown; "
            "this store object takes no more calls. Check the disk, then open the folder again"
        )

    def _apply(self, append: Append, now: int, holds: dict[str, str]) -> Committed:
        batch, index, logs = append.batch, self._state.index, self._state.logs
        before = index.leases[batch.run_id].hold
        if batch.lines:
            log = logs.setdefault(batch.run_id, Log())
            log.took(batch.first_sequence, len(marked(batch.lines)) + (not log.terminated))
            self._state.spellings[batch.run_id.lower()] = batch.run_id
        epoch = index.accept(append, now)
        hold = index.leases[batch.run_id].hold
        if hold is not None and hold != before:
            holds[batch.run_id] = hold
        return Committed(batch.last_sequence, now, epoch)

    # holds (R43) ---------------------------------------------------------------------------------------------

    def _drop_holds(self, appends: Sequence[Append], now: int) -> None:
        """Deletes the files of holds that the appends end. First: a crash in between may lose a hold, which the next drive
        sets again, but never leaves one that was ended."""
        rows = [(append, self._state.index.leases[append.batch.run_id]) for append in appends]
        ended = [
            append.batch.run_id
            for append, row in rows
            if row.hold is not None and leases.committed(row, append, now, lambda: None)[0].hold is None
        ]
        self._folder.remove(ended, ".hold.json")

    def keep_hold(self, run_id: str, hold: str) -> None:
        """Writes the file of a hold that was set."""
        try:
            self._folder.replace(run_id, ".hold.json", hold.encode() + b"\n")
        except OSError as error:
            # What it rides on is durable. In this process the run is held; the next one will find out again.
            _log.warning("run %s is held, but %s cannot be written (%s)", run_id, self._folder, error.strerror)

    def drop_hold(self, run_id: str) -> None:
        """Deletes the file of a hold that is about to end. Raises `StoreUnavailable`."""
        try:
            self._folder.remove([run_id], ".hold.json")
        except OSError as error:
            raise StoreUnavailable(f"{self._folder} cannot be written ({error.strerror}); the run is held") from None


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done
