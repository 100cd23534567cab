"""The JSONL sink: one record a line; its file is repaired like a log, its failures are kept (spec 09 §9.5, fixed bug 44)."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from scenarios.kit import World

from observe.tour import CANARY, observation_of, take_the_tour
from perdure.observe import AuditLog, FanOut, MemoryObserver, record_of


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file whose last one is whole."""
    *lines, rest = path.read_bytes().split(b"\n")
    assert rest == b""
    return lines


def sequences_of(path: Path) -> list[int]:
    return [orjson.loads(line)["sequence"] for line in lines_of(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "runs.jsonl"


async def test_it_holds_every_event_and_nothing_secret(world: World, path: Path) -> None:
    memory = MemoryObserver()
    with AuditLog(path) as log:
        history = await take_the_tour(world, FanOut(log, memory))
    assert [orjson.loads(line) for line in lines_of(path)] == [record_of(seen) for seen in memory.observations]
    assert sequences_of(path) == [event.sequence for event in history]
    assert CANARY not in path.read_text("utf-8")
    assert (log.written, log.last_error) == (len(history), None)


def test_opened_again_it_goes_on(path: Path) -> None:
    for sequence in (1, 2, 3):
        with AuditLog(path) as log:
            log.observe(observation_of(sequence))
    assert sequences_of(path) == [1, 2, 3]


def test_44_torn_at_every_byte_it_is_repaired(tmp_path: Path) -> None:
    """What is whole stays, also when only its newline is missing; what is torn goes; the next record has its own line."""
    whole = tmp_path / "whole.jsonl"
    with AuditLog(whole) as log:
        for sequence in (1, 2):
            log.observe(observation_of(sequence, "rün-ü"))
    content = whole.read_bytes()
    first = content.index(b"\n")
    for cut in range(len(content) + 1):
        torn = tmp_path / f"{cut}.jsonl"
        torn.write_bytes(content[:cut])
        with AuditLog(torn) as log:
            log.observe(observation_of(3))
        kept = [sequence for sequence, end in ((1, first), (2, len(content) - 1)) if cut >= end]
        assert sequences_of(torn) == [*kept, 3], cut
        assert log.last_error is None


@pytest.mark.parametrize(
    "tail",
    [b"   ", b"\0" * 4096, b"7", b'"text"', b"\xff\xfe", b'{"sequence":' + b"9" * 200_000],
    ids=["blanks", "zeros", "number", "text", "no UTF-8", "longer than a block"],
)
def test_44_any_other_tail_is_cut_off(path: Path, tail: bytes) -> None:
    with AuditLog(path) as log:
        log.observe(observation_of(1))
    with path.open("ab") as file:
        file.write(tail)
    with AuditLog(path) as log:
        log.observe(observation_of(2))
    assert sequences_of(path) == [1, 2]


def test_44_a_whole_record_longer_than_a_block_is_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"sequence":1}\n{"sequence":2,"note":"%b"}' % (b"x" * 200_000))
    with AuditLog(path) as log:
        log.observe(observation_of(3))
    assert sequences_of(path) == [1, 2, 3]


def test_lines_with_their_newline_are_not_touched(path: Path) -> None:
    """An audit file is evidence: what somebody else ended is left as it is."""
    path.parent.mkdir()
    path.write_bytes(b"\nno record\n")
    with AuditLog(path) as log:
        log.observe(observation_of(1))
    assert lines_of(path)[:2] == [b"", b"no record"]


class FullDisk:
    """The file, on a disk that has room for `room` more bytes: it takes what fits, then refuses."""

    def __init__(self, file: Any, room: int, *, raises: bool) -> None:
        self.file = file
        self.room = room
        self.raises = raises

    def write(self, data: bytes) -> int:
        taken: int = self.file.write(data[: self.room])
        self.room -= taken
        if self.raises and taken < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("raises", [True, False], ids=["raised", "short"])
@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_write_that_fails_is_kept_and_mended(
    path: Path, room: int, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(path)
    log.observe(observation_of(1))
    with monkeypatch.context() as full:
        full.setattr(log, "_file", FullDisk(log._file, room, raises=raises))
        log.observe(observation_of(2))
        assert isinstance(log.last_error, OSError)
        assert log.written == 1
    log.observe(observation_of(3))
    log.close()
    assert sequences_of(path) == [1, 3]
    assert log.written == 2


def test_after_close_the_failure_is_kept_too(path: Path) -> None:
    log = AuditLog(path)
    log.close()
    log.close()
    log.observe(observation_of(1))
    assert isinstance(log.last_error, ValueError)
    assert path.read_bytes() == b""


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        AuditLog(tmp_path)


def test_a_repair_that_fails_leaves_no_file_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> object:
        raise PermissionError

    path.parent.mkdir()
    path.write_bytes(b"torn")
    monkeypatch.setattr("perdure.observe._is_record", refuse)
    with pytest.raises(PermissionError):
        AuditLog(path)


@pytest.mark.parametrize("fsync", [False, True])
def test_fsync_is_a_choice(path: Path, fsync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with AuditLog(path, fsync=fsync) as log:
        log.observe(observation_of(1))
        log.observe(observation_of(2))
    assert len(synced) == (2 if fsync else 0)


def test_it_can_be_shared(path: Path) -> None:
    """Each engine tells on a thread of its own; lines never mix."""
    with AuditLog(path) as log:

        def tell(run_id: str) -> None:
            for sequence in range(1, 201):
                log.observe(observation_of(sequence, run_id))

        threads = [threading.Thread(target=tell, args=(run_id,)) for run_id in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.written == 800
    records = [orjson.loads(line) for line in lines_of(path)]
    for run_id in "abcd":
        assert [r["sequence"] for r in records if r["run_id"] == run_id] == list(range(1, 201))
