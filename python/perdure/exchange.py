"""Histories out of one store and into another, as JSON lines (spec 7.3, R3, R49).

The form is the reference engine's own: one event per line, a file `<run_id>.jsonl` per run, or all runs in one stream. Lines
go out and in as they are, hook tokens included, and are never rewritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from perdure.errors import (
    EventConflict,
    FlowError,
    InvalidRunId,
    OutcomeUnknown,
    RunConflict,
    RunNotFound,
    Serialization,
    StoreError,
    StoreUnavailable,
)
from perdure.kernel import Batch, Kernel, KernelName, load
from perdure.rebuild import IndexRebuilder, Unreadable
from perdure.retention import EVERY_RUN, RunSelection, in_parts
from perdure.stores.base import Append, Committed, FlowEventStore
from perdure.stores.jsonl_lines import events, scan
from perdure.stores.retaining import listed

__all__ = [
    "ImportReport",
    "Refusal",
    "Stored",
    "folder_histories",
    "import_histories",
    "stored_histories",
    "stream_histories",
]

_PAGE: Final = 100
_GROUP_BYTES: Final = 8 * 1024 * 1024
_GROUP_RUNS: Final = 256
_LONGEST_ID: Final = 200
_BLANKS: Final = b" \t\r\n"
_MARKED: Final = re.compile(rb"^ \{", re.MULTILINE)
_OURS: Final = re.compile(rb'\s*\{"run_id":"([A-Za-z0-9_-]+)"')
"""How lines begin that this engine or the reference wrote."""


class Stored(NamedTuple):
    """One run's history: whole lines, each ended by a newline. `note`, if any, says what the source holds beside them."""

    run_id: str
    lines: bytes
    note: str | None = None


class Refusal(NamedTuple):
    """A run that was not taken over, and why."""

    run_id: str
    reason: str


@dataclass(slots=True)
class ImportReport:
    """What an import did. `present` counts runs that were there already with this history, or with it and events since;
    `missing` names runs that imported ones are linked to and that the store does not have."""

    imported: int = 0
    present: int = 0
    events: int = 0
    refused: list[Refusal] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


# out -----------------------------------------------------------------------------------------------------------


async def stored_histories(store: FlowEventStore, wanted: RunSelection = EVERY_RUN) -> AsyncIterator[Stored]:
    """The histories of the runs that `wanted` means, by run id. Raises `RunNotFound` for an id that it names and the store does
    not have, before anything is given, and `ValueError` for ids beside other conditions."""
    if wanted.run_ids is not None:
        if wanted != RunSelection(run_ids=wanted.run_ids):
            raise ValueError("name runs by their ids, or say what they have in common, not both")
        run_ids = sorted(wanted.run_ids)
        for run_id in run_ids:
            await store.lease(run_id)
        for run_id in run_ids:
            yield Stored(run_id, await store.history(run_id))
        return
    async for page in listed(store, wanted, _PAGE):
        for record in page:
            try:
                lines = await store.history(record.run_id)
            except RunNotFound:
                continue  # pruned since it was listed
            yield Stored(record.run_id, lines)


# in: what a source holds ---------------------------------------------------------------------------------------


def folder_histories(folder: Path) -> Iterator[Stored]:
    """The histories of a folder of `<run_id>.jsonl`, by file name; other files are nobody's. The tail of a file is judged as by
    the JSONL store (R12): what a torn write left is not given, and noted. Raises `OSError`."""
    for file in sorted(folder.iterdir()):
        if file.name.endswith(".jsonl") and file.is_file():
            yield _judged(file.name.removesuffix(".jsonl"), file.read_bytes())


def _judged(run_id: str, data: bytes) -> Stored:
    """The bytes of a log, which a torn write may have left."""
    found = scan(data, _is_json)
    torn = len(data) - found.end
    note = f"left out a torn tail of {torn} bytes" if torn else None
    # A tail that no torn write leaves is left to the kernel, which names what is wrong with it.
    lines = events(data if found.damaged else data[: found.end])
    return Stored(run_id, lines, None if found.damaged else note)


def stream_histories(source: BinaryIO) -> Iterator[Stored]:
    """The histories of a file of lines of many runs, in the order in which the runs first appear; the lines of a run may stand
    anywhere in it, and logs of the JSONL store among them. `source` is read twice, so it can be sought in. Raises
    `Serialization` for a line that names no run, before anything is given, and `OSError`."""
    places: dict[str, list[tuple[int, int]]] = {}
    offset = 0
    for number, line in enumerate(source, 1):
        if line.strip(_BLANKS):
            ranges = places.setdefault(_run_of(line, number), [])
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + len(line))
            else:
                ranges.append((offset, offset + len(line)))
        offset += len(line)
    for run_id, ranges in places.items():
        parts = []
        for start, end in ranges:
            source.seek(start)
            parts.append(source.read(end - start))
        data = b"".join(parts)
        # Only a log has marks (R12), and one may end in a batch that is not whole.
        yield _judged(run_id, data) if _MARKED.search(data) else Stored(run_id, events(data))


def _run_of(line: bytes, number: int) -> str:
    ours = _OURS.match(line)
    if ours is not None:
        return ours[1].decode()
    try:
        run_id = json.loads(line, parse_int=_skip, parse_float=_skip, parse_constant=_skip)["run_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        run_id = None
    if not isinstance(run_id, str):
        raise Serialization("shape", number, "no event envelope: a line of JSON with a run_id was due")
    return run_id


def _skip(number: str) -> None:
    """Payloads may hold numbers that Python has no value for; none of them is looked at."""


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text, parse_int=_skip, parse_float=_skip, parse_constant=_skip)
    except (ValueError, RecursionError):
        return False
    return True


# in: into the store --------------------------------------------------------------------------------------------


async def import_histories(
    store: FlowEventStore,
    source: Iterable[Stored],
    *,
    kernel: KernelName = "rust",
    progress: Callable[[int], None] = lambda _: None,
) -> ImportReport:
    """Takes histories over. Each is projected by the kernel called `kernel` before anything of its run is written, and written
    as a whole; the run counts as never parked (R3). A run that is there with this history, or has gone on from it, is left as
    it is, so an import that was cut short is finished by the next.

    A run that is refused does not stop the others: one that is there with another history, was pruned, does not project, has
    an active hook whose token another run holds, or has ids that this store cannot hold. `progress` is told of how many runs
    more are done. Raises `StoreError` and what reading `source` raises.
    """
    work = _Import(store, load(kernel), IndexRebuilder(kernel), progress)
    for group in _groups(source):
        await work.take(group)
    await work.look_for_missing()
    return work.report


def _groups(source: Iterable[Stored]) -> Iterator[list[Stored]]:
    group: list[Stored] = []
    size = 0
    for stored in source:
        if group and (size + len(stored.lines) > _GROUP_BYTES or len(group) == _GROUP_RUNS):
            yield group
            group, size = [], 0
        group.append(stored)
        size += len(stored.lines)
    if group:
        yield group


class _Import:
    def __init__(
        self, store: FlowEventStore, kernel: Kernel, rebuilder: IndexRebuilder, progress: Callable[[int], None]
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._rebuilder = rebuilder
        self._progress = progress
        self._linked: dict[str, None] = {}
        self.report = ImportReport()

    async def take(self, group: list[Stored]) -> None:
        sound = [stored for stored in group if self._is_sound(stored)]
        there = await self._store.last_sequences([stored.run_id for stored in sound])
        for stored in sound:
            if stored.run_id in there:
                await self._compare(stored)
        await self._restore([stored for stored in sound if stored.run_id not in there])
        self._progress(len(group))

    def _is_sound(self, stored: Stored) -> bool:
        """Whether the store may be asked of the run; an id from elsewhere may be no text that a store can hold."""
        try:
            if not stored.run_id.isascii():  # also what has no UTF-8 form, which the kernel could not be given
                raise InvalidRunId(stored.run_id, "characters")
            self._kernel.check_run_id(stored.run_id)
            if len(stored.run_id) > _LONGEST_ID:
                raise InvalidRunId(stored.run_id, "length")
        except InvalidRunId as error:
            self._refuse(stored.run_id, str(error))
            return False
        if not stored.lines:
            self._refuse(stored.run_id, "it has no events")
        return bool(stored.lines)

    async def _restore(self, group: list[Stored]) -> None:
        """Commits the runs that project."""
        rebuilt = self._rebuilder.rebuild([(stored.run_id, stored.lines) for stored in group])
        batches: list[tuple[Stored, Batch]] = []
        for stored, batch in zip(group, rebuilt, strict=True):
            if isinstance(batch, Unreadable):
                self._refuse(stored.run_id, f"event {batch.line + 1} of its history does not hold: {batch.error}")
            else:
                batches.append((stored, batch))
        if not batches:
            return
        answers = await self._commit([Append(batch, restored=True) for _, batch in batches])
        for (stored, batch), answer in zip(batches, answers, strict=True):
            if isinstance(answer, EventConflict):
                await self._compare(stored)  # somebody was faster
            elif isinstance(answer, FlowError):
                self._refuse(stored.run_id, str(answer))
            else:
                self.report.imported += 1
                self.report.events += batch.last_sequence
                self._linked.update(dict.fromkeys(batch.links))

    async def _commit(self, appends: list[Append]) -> Sequence[Committed | FlowError]:
        try:
            return await self._store.commit(appends)
        except (StoreUnavailable, OutcomeUnknown):
            raise
        except StoreError as error:
            # Nothing was written, and one of them may be to blame: this store cannot hold it, or has damaged lines of it.
            if len(appends) == 1:
                return [error]
            return [answer for append in appends for answer in await self._commit([append])]

    async def _compare(self, stored: Stored) -> None:
        try:
            there = await self._store.history(stored.run_id)
        except RunNotFound:  # since it was looked for
            self._refuse(stored.run_id, str(RunConflict(stored.run_id, "pruned")))
            return
        if there.startswith(stored.lines):
            self.report.present += 1
        else:
            self._refuse(stored.run_id, "it is there with another history")

    def _refuse(self, run_id: str, reason: str) -> None:
        self.report.refused.append(Refusal(run_id, reason))

    async def look_for_missing(self) -> None:
        for part in in_parts(self._linked, _GROUP_RUNS):
            there = await self._store.last_sequences(part)
            self.report.missing += [run_id for run_id in part if run_id not in there]
