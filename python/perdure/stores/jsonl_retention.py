"""Tombstones and retention holds as files of a JSONL folder (R51, spec 7.3).

A tombstone is on the disk before the log beside it is deleted, and opening the folder deletes a log beside its tombstone; so a
prune may be cut short anywhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from typing import Final

from perdure.errors import Serialization, StoreError, StoreUnavailable
from perdure.instant import format_instant, parse_instant
from perdure.payload import decode, encode
from perdure.retention import Digest, HistoryHold, Tombstone
from perdure.stores.jsonl_folder import JsonlFolder, Suffix
from perdure.stores.jsonl_lines import events
from perdure.stores.jsonl_state import JsonlState

__all__ = ["PRUNED", "bury", "forget", "keep_history_holds", "load_history_holds", "read_tombstone"]

_log = logging.getLogger("perdure")
PRUNED: Final[tuple[Suffix, ...]] = (".jsonl", ".hold.json", ".history-holds.json", ".torn")
"""The files that a pruned run must not have."""


def bury(folder: JsonlFolder, state: JsonlState, run_ids: Sequence[str], deleted_at: int) -> None:
    """Makes the tombstones of these runs durable. Raises `StoreError`, `StoreUnavailable`; what was written then is a
    tombstone beside its log, which a new one replaces."""
    if not run_ids:
        return
    try:
        left = (_tombstone_of(folder, state, run_id, deleted_at) for run_id in run_ids)
        folder.replace_all(".tombstone.json", {tombstone.run_id: _text_of(tombstone) for tombstone in left})
    except OSError as error:
        _withdraw(folder, run_ids)
        raise _unwritten(folder, error) from None


def _tombstone_of(folder: JsonlFolder, state: JsonlState, run_id: str, deleted_at: int) -> Tombstone:
    file = folder.file(run_id, ".jsonl")
    with file.open("rb") as log:
        data = log.read(state.logs[run_id].end)
    digest = Digest(run_id, state.index.state(run_id).last_sequence)
    digest.add(events(data))
    return digest.tombstone(deleted_at)


def _text_of(tombstone: Tombstone) -> bytes:
    text = {
        "run_id": tombstone.run_id,
        "deleted_at": format_instant(tombstone.deleted_at),
        "terminal_sequence": tombstone.terminal_sequence,
        "terminal_event_id": tombstone.terminal_event_id,
        "history_sha256": tombstone.history_sha256,
    }
    return encode(text) + b"\n"


def _withdraw(folder: JsonlFolder, run_ids: Sequence[str]) -> None:
    """Takes tombstones back whose logs still count, so that the next opening does not delete these."""
    try:
        folder.remove(run_ids, ".tombstone.json")
    except OSError as error:
        _log.error(
            "%s keeps tombstones of a prune that failed (%s); pruning again completes it", folder, error.strerror
        )


def forget(folder: JsonlFolder, state: JsonlState, run_ids: Sequence[str]) -> None:
    """Deletes the files of runs that have tombstones."""
    with state.lock:
        for run_id in run_ids:
            del state.logs[run_id]
    try:
        folder.remove(run_ids, *PRUNED)
    except OSError as error:
        # The tombstones are durable: the runs are gone, and the next opening of the folder tries again.
        _log.warning("%s keeps files of pruned runs for now (%s)", folder, error.strerror)


def read_tombstone(folder: JsonlFolder, run_id: str) -> Tombstone:
    """The tombstone of a run that has one. Raises `StoreError` for a file that is none."""
    file = folder.file(run_id, ".tombstone.json")
    try:
        text = decode(file.read_bytes().strip())
        return Tombstone(
            run_id,
            parse_instant(text["deleted_at"]),
            text["terminal_sequence"],
            text["terminal_event_id"],
            text["history_sha256"],
        )
    except (OSError, Serialization, KeyError, TypeError, ValueError):
        raise StoreError(f"{file} is no tombstone; restore it from a backup") from None


def keep_history_holds(folder: JsonlFolder, run_id: str, holds: Collection[HistoryHold]) -> None:
    """Makes the retention holds of a run durable, all of them in one file. Raises `StoreUnavailable`."""
    rows = [
        {"hold_id": hold.hold_id, "reason": hold.reason, "created_at": format_instant(hold.created_at)}
        for hold in sorted(holds, key=lambda hold: hold.hold_id)
    ]
    try:
        if rows:
            folder.replace(run_id, ".history-holds.json", encode(rows) + b"\n")
        else:
            folder.remove([run_id], ".history-holds.json")
    except OSError as error:
        raise _unwritten(folder, error) from None


def load_history_holds(folder: JsonlFolder, state: JsonlState) -> None:
    """Puts the retention holds of the folder into the index. Raises `StoreError` for a file that holds none."""
    for run_id in folder.runs_with(".history-holds.json"):
        file = folder.file(run_id, ".history-holds.json")
        try:
            holds = [
                HistoryHold(run_id, row["hold_id"], row["reason"], parse_instant(row["created_at"]))
                for row in decode(file.read_bytes().strip())
            ]
        except (Serialization, KeyError, TypeError, ValueError):
            raise StoreError(
                f"{file} holds no retention holds; restore it, or delete it to release the history, and open the store again"
            ) from None
        state.index.history_holds[run_id] = {hold.hold_id: hold for hold in holds}


def _unwritten(folder: JsonlFolder, error: OSError) -> StoreUnavailable:
    reason = error.strerror or os.strerror(error.errno or 0)
    return StoreUnavailable(f"{folder} cannot be written ({reason}); make room, or see who may write there")
