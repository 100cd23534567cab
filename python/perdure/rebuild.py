"""Index rows out of histories, for a store whose medium keeps histories only (spec 7.3, R50).

A layer of its own between kernel and stores: it loads a kernel, which a store does not, and knows no store.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from perdure.errors import FlowError, Serialization
from perdure.instant import due_key
from perdure.kernel import (
    DEFAULT_MAX_EVENT_BYTES,
    Batch,
    HookDelete,
    HookInsert,
    Kernel,
    KernelName,
    Run,
    RunRow,
    WakeupDelete,
    WakeupUpsert,
    load,
)

__all__ = ["IndexRebuilder", "Unreadable"]

_THREADS: Final = 4


class Unreadable(NamedTuple):
    """Why a history gives no rows. `line` counts the refused event's line from 0 inside the given bytes."""

    line: int
    error: FlowError


@dataclass(frozen=True, slots=True)
class _Wakeup:
    kind: str
    subject_id: str
    due: int

    @property
    def due_key(self) -> str:
        return due_key(self.due)


@dataclass(frozen=True, slots=True)
class _Hook:
    hook_id: str
    token: str = field(repr=False)
    sequence: int

    @property
    def token_hash(self) -> bytes:
        return hashlib.sha256(self.token.encode()).digest()


@dataclass(slots=True)  # not frozen: there are as many as a folder has runs, and that would cost more than all the rest
class _WholeRun:
    """A run's whole history as one batch."""

    row: RunRow
    run_id: str
    lines: bytes = field(repr=False)
    upsert_wakeups: list[WakeupUpsert]
    insert_hooks: list[HookInsert] = field(repr=False)
    links: list[str]
    expected_sequence: int = 0
    first_sequence: int = 1
    clear_wakeups: bool = True
    clear_hooks: bool = True
    changes_index: bool = True

    @property
    def last_sequence(self) -> int:
        return self.row.last_sequence

    @property
    def event_ids(self) -> list[str]:
        return []

    @property
    def delete_wakeups(self) -> list[WakeupDelete]:
        return []

    @property
    def delete_hooks(self) -> list[HookDelete]:
        return []


class IndexRebuilder:
    """Reads histories with the kernel called `kernel`. Raises `ImportError` where that is missing."""

    def __init__(self, kernel: KernelName = "rust") -> None:
        self._kernel: Kernel = load(kernel)

    def is_json(self, text: bytes) -> bool:
        """Whether `text` is one whole JSON value."""
        try:
            return self._kernel.json_equal(text, text)
        except Serialization:
            return False

    def rebuild(self, histories: Sequence[tuple[str, bytes]]) -> list[Batch | Unreadable]:
        """For each (run id, lines), which must not be empty, the batch that puts the whole run into a store or an index, in
        the order given. Its event ids are left out."""
        threads = min(_THREADS, os.cpu_count() or 1)
        runs = self._kernel.project_many(histories, threads)
        return [self._whole(*history, run) for history, run in zip(histories, runs, strict=True)]

    def _whole(self, run_id: str, lines: bytes, run: Run | Exception) -> Batch | Unreadable:
        if isinstance(run, FlowError):
            return self._refused(run_id, lines, run)
        if isinstance(run, Exception):
            raise run
        # A batch without events says how the run stands, in the very row that its next batch would bring.
        whole = _WholeRun(run.stage((), run.updated_at).append(b"").row, run_id, lines, [], [], _links(lines, run))
        if not whole.row.terminal:
            whole.upsert_wakeups += [_Wakeup(kind, id, due) for kind, id, due in run.suspensions() if due is not None]
            whole.insert_hooks += [
                _Hook(hook.hook_id, hook.token, hook.created_sequence) for hook in run.active_hooks()
            ]
        return whole

    def _refused(self, run_id: str, lines: bytes, error: FlowError) -> Unreadable:
        """Which line it was: the errors of projection rules name an event, and a damaged line may name any."""
        run = self._kernel.new(run_id, DEFAULT_MAX_EVENT_BYTES)
        for number, line in enumerate(lines.split(b"\n")):
            try:
                run.extend(line)
            except FlowError as refused:
                return Unreadable(number, refused)
        raise error  # refused as a whole only: nothing to name


def _links(lines: bytes, run: Run) -> list[str]:
    """The runs that this one names as children. Few do, so the snapshot, which lists them, is made only where the lines may
    hold the word, be it with escapes."""
    if b"flow_run_id" not in lines and b"\\u" not in lines:
        return []
    # Payloads may hold numbers that Python has no value for; none of them is looked at.
    snapshot = json.loads(run.snapshot(), parse_int=str, parse_float=str, parse_constant=str)
    children = snapshot["child_operations"].values()
    return list(dict.fromkeys(child["flow_run_id"] for child in children if child.get("flow_run_id") is not None))
