"""What a JSONL store makes of the bytes it finds: torn tails, missing newlines, zeros, damage (spec 7.3, R12; scenarios 62
and 63)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from perdure.errors import FlowError, OutcomeUnknown, RunNotFound, StoreError, StoreUnavailable
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Run, load
from perdure.rebuild import IndexRebuilder
from perdure.stores import JsonlEventStore, jsonl_writer
from perdure.stores.base import Append, Committed
from perdure.stores.jsonl_lines import events, is_blank, marked, scan, unmarked
from perdure.testing._stories import START, Story, created, hook, started, wait

PURE = load("pure")
is_json = IndexRebuilder("pure").is_json


def opened(folder: Path) -> JsonlEventStore:
    return JsonlEventStore(folder, lambda: START, kernel="pure")


def history_of(folder: Path, run_id: str = "r") -> bytes | type[FlowError]:
    async def read() -> bytes | type[FlowError]:
        store = opened(folder)
        try:
            return await store.history(run_id)
        except RunNotFound:
            return RunNotFound
        finally:
            await store.close()

    return asyncio.run(read())


def error_of(folder: Path, run_id: str = "r") -> str:
    """What both reading and appending say of a damaged run."""

    async def ask() -> str:
        store = opened(folder)
        before = (folder / f"{run_id}.jsonl").read_bytes()
        said = set()
        for call in (
            store.history(run_id),
            store.commit([Append(Story(PURE, run_id).batch(created()))]),
            store.lease(run_id),
            store.set_hold(run_id, "{}", expected_sequence=1),
        ):
            with pytest.raises(StoreError) as raised:
                await call
            said.add(str(raised.value))
        assert (folder / f"{run_id}.jsonl").read_bytes() == before
        assert run_id in await store.run_ids()
        await store.close()
        (text,) = said
        return text

    return asyncio.run(ask())


@pytest.fixture
def batches() -> list[bytes]:
    """The lines of a run's batches: one of one line, one of three, one of two."""
    story = Story(PURE, "r")
    given = []
    for drafts in ([created()], [started(), wait("w", START), hook("h", "canary-t")], [wait("v", START), wait("u", 5)]):
        batch = story.batch(*drafts)
        story.accept(batch)
        given.append(batch.lines)
    return given


@pytest.fixture
def log(tmp_path: Path, batches: list[bytes]) -> Path:
    """That run's file, as the store writes it."""
    file = tmp_path / "runs" / "r.jsonl"
    file.parent.mkdir()
    file.write_bytes(b"".join(map(marked, batches)))
    return file


def run_of(lines: bytes) -> Run:
    return PURE.project("r", lines, DEFAULT_MAX_EVENT_BYTES)


def append_to(folder: Path, lines: bytes) -> bytes:
    """Adds one more batch of two lines to a run with this history; gives its lines."""

    async def append() -> bytes:
        story = Story(PURE, "r")
        if lines:
            story.run = run_of(lines)
        batch = story.batch(*([] if lines else [created()]), wait("more", START), wait("and-more", START))
        store = opened(folder)
        assert await store.commit([Append(batch)]) == [Committed(batch.last_sequence)]
        assert await store.history("r") == lines + batch.lines
        await store.close()
        return batch.lines

    return asyncio.run(append())


# lines -----------------------------------------------------------------------------------------------------------------


def test_every_line_of_a_batch_but_the_last_is_marked() -> None:
    assert marked(b"{1}\n") == b"{1}\n"
    assert marked(b"{1}\n{2}\n{3}\n") == b" {1}\n {2}\n{3}\n"
    assert events(b" {1}\n {2}\n{3}\n") == b"{1}\n{2}\n{3}\n"


def test_events_are_lines_that_are_not_blank_each_with_its_end() -> None:
    assert events(b"") == b""
    assert events(b"{1}") == b"{1}\n"
    assert events(b"\n{1}\r\n \t\n\n {2}\n{3}") == b"{1}\r\n{2}\n{3}\n"
    assert events(b"  {1}\n") == b"  {1}\n"  # two spaces are no mark
    assert unmarked(b" {1}\n  {2}\n \n {3}\n") == b"{1}\n  {2}\n \n{3}\n"  # where lines stand is the same
    assert is_blank(b"\n \t\r\n")
    assert not is_blank(b"\n{1}")


# a kill at every byte --------------------------------------------------------------------------------------------------


def test_killed_at_any_byte_of_an_append_the_store_holds_whole_batches(log: Path, batches: list[bytes]) -> None:
    data = log.read_bytes()
    ends = [sum(len(marked(lines)) for lines in batches[:count]) for count in range(4)]
    for size in range(len(data) + 1):
        # A last line that lacks nothing but its newline counts.
        whole = sum(end <= size + 1 for end in ends[1:])
        expected = b"".join(batches[:whole])
        assert events(data[: scan(data[:size], is_json).end]) == expected, size
        log.write_bytes(data[:size])
        assert history_of(log.parent) == (expected or RunNotFound), size
        assert log.read_bytes() == data[:size]
        if size % 16 == 0 or min(abs(size - end) for end in ends) < 4:
            append_to(log.parent, expected)
            log.with_name("r.torn").unlink(missing_ok=True)


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_what_is_cut_off_before_the_next_append_is_kept_and_logged(
    log: Path, batches: list[bytes], cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = log.read_bytes()
    expected = batches[0] + batches[1] + (batches[2] if cut == 1 else b"")
    log.write_bytes(data[:-cut])
    with caplog.at_level(logging.WARNING, "perdure"):
        added = append_to(log.parent, expected)
    aside = log.with_name("r.torn")
    if cut == 1:
        assert log.read_bytes() == data + marked(added)
        assert not aside.exists()
        assert caplog.records == []
    else:
        kept = marked(batches[0]) + marked(batches[1])
        assert log.read_bytes() == kept + marked(added)
        assert aside.read_bytes() == data[len(kept) : -cut]
        assert "run r: cut a torn tail" in caplog.text
        assert "canary" not in caplog.text
    assert history_of(log.parent) == expected + added


def test_a_second_torn_tail_is_kept_beside_the_first(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches)
    for tail in (b"{torn", b'{"again'):
        with log.open("ab") as file:
            file.write(tail)
        lines += append_to_with(log.parent, lines, tail.decode()[1:].strip('"'))
    assert log.with_name("r.torn").read_bytes() == b'{torn{"again'


def append_to_with(folder: Path, lines: bytes, wait_id: str) -> bytes:
    async def append() -> bytes:
        story = Story(PURE, "r")
        story.run = run_of(lines)
        batch = story.batch(wait(wait_id, START))
        store = opened(folder)
        assert await store.commit([Append(batch)]) == [Committed(batch.last_sequence)]
        await store.close()
        return batch.lines

    return asyncio.run(append())


def test_a_run_of_which_nothing_is_whole_can_be_created(log: Path, batches: list[bytes]) -> None:
    for torn in (b"", b"{", b" {}\n", b"\n", marked(batches[1])[:-20]):
        log.write_bytes(torn)
        log.with_name("r.torn").unlink(missing_ok=True)
        assert history_of(log.parent) == RunNotFound
        append_to(log.parent, b"")


def test_killed_at_any_byte_of_a_group_over_files_each_run_holds_whole_batches(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    histories: dict[str, list[bytes]] = {}

    async def fill() -> None:
        store = opened(whole)
        stories = [Story(PURE, run_id) for run_id in ("a", "b")]
        for drafts in ([created()], [started(), wait("w", START)]):
            group = [story.batch(*drafts) for story in stories]
            await store.commit([Append(batch) for batch in group])
            for story, batch in zip(stories, group, strict=True):
                story.accept(batch)
                histories.setdefault(story.run_id, [b""]).append(histories.get(story.run_id, [b""])[-1] + batch.lines)
        await store.close()

    async def read() -> dict[str, bytes]:
        store = opened(whole)
        found = {run_id: await store.history(run_id) for run_id in ("a", "b")}
        await store.close()
        return found

    asyncio.run(fill())
    for torn, other in (("a", "b"), ("b", "a")):
        file = whole / f"{torn}.jsonl"
        data = file.read_bytes()
        for size in range(len(marked(histories[torn][1])), len(data) + 1):
            file.write_bytes(data[:size])
            found = asyncio.run(read())
            assert found[torn] == histories[torn][2 if size >= len(data) - 1 else 1], size
            assert found[other] == histories[other][2]


# lines of the reference engine (scenario 62) ---------------------------------------------------------------------------


def test_a_last_event_without_its_newline_counts(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches)
    log.write_bytes(lines[:-1])
    assert history_of(log.parent) == lines
    assert log.read_bytes() == lines[:-1]
    added = append_to(log.parent, lines)
    assert log.read_bytes() == lines + marked(added)


def test_half_a_line_at_the_end_is_ignored_and_then_cut_off(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches)
    for tail in (b'{"run_id":"r","sequ', b" \t", b'{"a":"\xff', b'{"a":1,', b" "):
        log.write_bytes(lines + tail)
        assert history_of(log.parent) == lines
        assert log.read_bytes() == lines + tail
        added = append_to(log.parent, lines)
        assert log.read_bytes() == lines + marked(added)


def test_blank_lines_are_skipped_and_kept(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches)
    spaced = b"\n" + lines.replace(b"\n", b"\n \t\r\n\n")
    log.write_bytes(spaced)
    assert history_of(log.parent) == lines
    added = append_to(log.parent, lines)
    assert log.read_bytes() == spaced + marked(added)


def test_a_carriage_return_before_the_end_of_a_line_is_a_blank(log: Path, batches: list[bytes]) -> None:
    log.write_bytes(b"".join(batches).replace(b"\n", b"\r\n"))
    found = history_of(log.parent)
    assert isinstance(found, bytes)
    assert run_of(found).last_sequence == 6


# zeros -----------------------------------------------------------------------------------------------------------------


def test_zeros_in_the_last_batch_begin_a_torn_tail(log: Path, batches: list[bytes]) -> None:
    data, start = log.read_bytes(), len(marked(batches[0]))
    end = start + len(marked(batches[1]))
    for first, last in ((start, start + 9), (start + 30, start + 400), (end - 40, end), (end - 1, end), (start, end)):
        zeroed = data[:first] + bytes(last - first) + data[last:end]
        log.write_bytes(zeroed)
        assert history_of(log.parent) == batches[0], (first, last)
        append_to(log.parent, batches[0])
        assert log.with_name("r.torn").read_bytes() == zeroed[start:]
        log.with_name("r.torn").unlink()


def test_zeros_before_the_last_batch_are_damage(log: Path, batches: list[bytes]) -> None:
    data = log.read_bytes()
    log.write_bytes(data[:5] + bytes(9) + data[14:])
    assert f"line 1 of {log} cannot be read (malformed" in error_of(log.parent)
    start = len(marked(batches[0])) + 5
    log.write_bytes(data[:start] + bytes(9) + data[start + 9 :])
    assert f"line 2 of {log} cannot be read" in error_of(log.parent)


# damage (scenarios 62 and 63) ------------------------------------------------------------------------------------------


def test_a_line_in_the_middle_that_cannot_be_read_is_named(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches).splitlines(keepends=True)
    for number in range(6):
        log.write_bytes(b"\n" + b"".join([*lines[:number], lines[number][:-9] + b"\n", *lines[number + 1 :]]))
        text = error_of(log.parent)
        assert f"line {number + 2} of {log} cannot be read (malformed: " in text
        assert "Restore it from a backup, or move it out of the folder" in text
        assert "canary" not in text


def test_a_line_of_another_run_is_named(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches).splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"r"', b'"q"')
    log.write_bytes(b"".join(lines))
    assert f"line 3 of {log} cannot be read (foreign_run: " in error_of(log.parent)
    log.write_bytes(b"".join(lines[:3])[:-1])  # also as the last line, without its newline
    assert f"line 3 of {log} cannot be read (foreign_run: " in error_of(log.parent)


def test_a_gap_and_an_event_of_a_newer_release_are_named(log: Path, batches: list[bytes]) -> None:
    lines = b"".join(batches).splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert f"line 3 of {log} cannot be read (run 'r', event 4: the sequence is 4 where 3 was due)" in error_of(
        log.parent
    )
    log.write_bytes(b"".join(lines).replace(b'"wait_created"', b'"wait_imagined"', 1))
    assert f"line 3 of {log} cannot be read (shape: " in error_of(log.parent)


def test_one_damaged_run_leaves_the_others_alone(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    log.write_bytes(b"{}\n")

    async def test() -> None:
        with caplog.at_level(logging.ERROR, "perdure"):
            store = opened(log.parent)
        assert [record.getMessage() for record in caplog.records] == [str(store._state.damaged["r"])]
        story, broken = Story(PURE, "s"), Story(PURE, "r").batch(created())
        results = await asyncio.gather(
            story.write(store, created()), store.commit([Append(broken)]), return_exceptions=True
        )
        assert results[0] == Committed(1)
        assert isinstance(results[1], StoreError)
        assert await store.run_ids() == ["r", "s"]
        assert [row.run_id for row in (await store.runs()).runs] == ["s"]
        assert [claimed.run_id for claimed in await store.claim("me", 9, ttl_ns=1)] == ["s"]
        await store.close()

    asyncio.run(test())


def test_no_flipped_bit_loses_an_event(log: Path, batches: list[bytes]) -> None:
    """A flip inside a value is another value, which no format without checksums can tell; all others are refused by file
    and line. A zero byte is left out: it is taken for a block that did not reach the disk (R12)."""
    data = log.read_bytes()
    whole = b"".join(batches)
    refused = 0
    for position in range(len(data)):
        for bit in range(8):
            byte = data[position] ^ 1 << bit
            flipped = data[:position] + bytes([byte]) + data[position + 1 :]
            if byte == 0 or (bit != position % 8 and data[position] not in b'\n {}"'):
                continue
            if refused_at(flipped) is not None:
                refused += 1
            else:
                found = scan(flipped, is_json)
                assert found.end == len(flipped), position
                assert len(events(flipped).splitlines()) == len(whole.splitlines()), position
                assert data[position] not in b"\n {}", position
    assert refused > len(data)


def refused_at(data: bytes) -> int | None:
    """The number of the line for which a log is refused."""
    found = scan(data, is_json)
    if found.damaged is not None:
        return found.damaged
    (batch,) = IndexRebuilder("pure").rebuild([("r", unmarked(data[: found.end]))])
    return batch.line + 1 if isinstance(batch, tuple) else None


def test_a_flipped_bit_in_the_last_newline_is_no_torn_tail(log: Path) -> None:
    data = log.read_bytes()
    for bit in range(8):
        if data[-1] ^ 1 << bit:
            log.write_bytes(data[:-1] + bytes([data[-1] ^ 1 << bit]))
            assert f"line 6 of {log} cannot be read (no torn write leaves such a line)" in error_of(log.parent)


# a disk that fails -----------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    """Errors that writing raises, in order, each after half of the bytes went out."""
    errors: list[OSError] = []
    write = jsonl_writer._write_all

    def write_all(descriptor: int, data: bytes, offset: int) -> None:
        if errors:
            write(descriptor, data[: len(data) // 2], offset)
            raise errors.pop()
        write(descriptor, data, offset)

    monkeypatch.setattr(jsonl_writer, "_write_all", write_all)
    return errors


def test_a_full_disk_commits_nothing_of_the_group(tmp_path: Path, failing: list[OSError]) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        kept = Story(PURE, "a")
        await kept.write(store, created())
        before = (tmp_path / "a.jsonl").read_bytes()
        group = [Append(kept.batch(started())), Append(Story(PURE, "b").batch(created()))]
        failing.append(OSError(28, "No space left on device"))
        with pytest.raises(StoreUnavailable, match="No space left on device.*nothing was written"):
            await store.commit(group)
        assert (tmp_path / "a.jsonl").read_bytes() == before
        assert not (tmp_path / "b.jsonl").exists()
        assert await store.run_ids() == ["a"]
        assert await store.commit(group) == [Committed(2), Committed(1)]
        await store.close()

    asyncio.run(test())


def test_what_fails_after_a_part_of_its_group_was_durable_is_unknown(tmp_path: Path, failing: list[OSError]) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        first, second = Story(PURE, "a").batch(created()), Story(PURE, "b")
        sync_files = store._folder.sync_files

        def fail_next(descriptors: list[int]) -> None:
            sync_files(descriptors)
            failing.append(OSError(28, "No space left on device"))
            store._folder.sync_files = sync_files  # type: ignore[method-assign]  # once

        store._folder.sync_files = fail_next  # type: ignore[method-assign]  # to fail between two rounds
        link = {"reference_id": "c", "kind": "flow", "operation_id": "o", "flow_run_id": "a"}
        linking = second.batch(created(), {"type": "child_operation_linked", "child": link})
        with pytest.raises(OutcomeUnknown, match="a part of the group of commits was written before"):
            await store.commit([Append(first), Append(linking)])
        assert await store.run_ids() == ["a"]
        assert await store.commit([Append(linking)]) == [Committed(2)]
        await store.close()

    asyncio.run(test())


def test_a_failed_sync_ends_the_store_and_the_next_one_finds_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        story = Story(PURE, "r")
        await story.write(store, created())

        def fail(descriptors: list[int]) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(store._folder, "sync_files", fail)
        batch = story.batch(started(), wait("w", START))
        for call in (store.commit([Append(batch)]), store.commit([Append(batch)]), store.history("r"), store.run_ids()):
            with pytest.raises(OutcomeUnknown, match="open the folder again"):
                await call
        with pytest.raises(OutcomeUnknown):
            await store.renew("me", [("r", 1)], ttl_ns=1)
        await store.close()
        again = opened(tmp_path)
        assert (await again.last_sequences(["r"]))["r"] in (1, 3)
        await again.close()

    asyncio.run(test())


def test_a_file_that_shrank_under_the_store_is_reported(log: Path) -> None:
    async def test() -> None:
        store = opened(log.parent)
        log.write_bytes(log.read_bytes()[:100])
        with pytest.raises(StoreError, match=r"r\.jsonl has 100 bytes where \d+ were written"):
            await store.history("r")
        log.unlink()
        with pytest.raises(StoreError, match=r"r\.jsonl cannot be read"):
            await store.history("r")
        await store.close()

    asyncio.run(test())
