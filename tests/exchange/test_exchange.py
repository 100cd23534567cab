"""Histories from store to store and with the reference engine's files: nothing lost, nothing rewritten, nothing half."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest

from perdure import Flow, FlowEngine, RuntimeCommand, WorkflowContext
from perdure.errors import RunNotFound, Serialization
from perdure.exchange import (
    ImportReport,
    Stored,
    folder_histories,
    import_histories,
    stored_histories,
    stream_histories,
)
from perdure.instant import MAX_NS
from perdure.kernel import KernelName, load
from perdure.retention import RunSelection
from perdure.stores import FlowEventStore, JsonlEventStore, MemoryEventStore, SqliteEventStore
from perdure.stores.postgres import PostgresEventStore
from perdure.testing._stories import SECOND, START, Story, child, created, hook, random_drafts, started, wait
from perdure.testing.postgres import shared_server

RUST = load("rust")
ENDED = {"type": "run_completed", "output": None}
LATER = START + 10**6 * SECOND
NUMBERS = count(1)
REFERENCE = Path(__file__).resolve().parents[1] / "data" / "reference" / "cases.jsonl"
KINDS = ("memory", "jsonl", "sqlite", "postgres")


def make(kind: str, folder: Path) -> FlowEventStore:
    """An empty store."""
    number = next(NUMBERS)
    if kind == "memory":
        return MemoryEventStore()
    if kind == "jsonl":
        return JsonlEventStore(folder / f"runs{number}")
    if kind == "sqlite":
        return SqliteEventStore(folder / f"{number}.db")
    return PostgresEventStore(shared_server().url, schema=f"exchange {number}")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def on(kind: str, folder: Path, test: Callable[[FlowEventStore], Awaitable[None]]) -> None:
    async def body() -> None:
        store = make(kind, folder)
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(body())


def reference_histories() -> dict[str, bytes]:
    """What the reference engine wrote in its recorded cases, as far as one store can hold all of it: the kernel reads it, and
    no two runs hold one token."""
    found: dict[str, bytes] = {}
    tokens: set[str] = set()
    for row in REFERENCE.read_text("utf-8").split("\n")[:-1]:
        for run_id, recorded in json.loads(row)["recorded"]["runs"].items():
            lines = "".join(line + "\n" for line in recorded["lines"]).encode()
            run = RUST.project_many([(run_id, lines)], 1)[0]
            if isinstance(run, Exception) or not tokens.isdisjoint(hook.token for hook in run.active_hooks()):
                continue
            tokens.update(hook.token for hook in run.active_hooks())
            found[run_id] = lines
    return dict(sorted(found.items()))


def given(histories: dict[str, bytes]) -> list[Stored]:
    return [Stored(run_id, lines) for run_id, lines in histories.items()]


def random_histories(seed: int, runs: int) -> dict[str, bytes]:
    random = Random(seed)
    found: dict[str, bytes] = {}
    for number in range(runs):
        story, lines = Story(RUST, f"r{number:03}"), b""
        for _ in range(random.randint(1, 6)):
            if drafts := random_drafts(story, random, [f"canary-{number}-{n}" for n in range(4)]):
                batch = story.batch(*drafts)
                story.accept(batch)
                lines += batch.lines
        found[story.run_id] = lines
    return found


async def collected(store: FlowEventStore, wanted: RunSelection | None = None) -> dict[str, bytes]:
    return {stored.run_id: stored.lines async for stored in stored_histories(store, wanted or RunSelection())}


async def index(store: FlowEventStore) -> list[object]:
    return [
        await store.runs(limit=1000),
        await store.summary(),
        await store.list_due_wakeups(MAX_NS),
        await store.list_active_hooks(),
    ]


def test_the_reference_wrote_histories_to_exchange() -> None:
    assert len(reference_histories()) > 50


def test_a_round_trip_over_all_stores_keeps_every_byte_and_the_index(tmp_path: Path) -> None:
    histories = reference_histories() | random_histories(1, 60)

    async def go() -> None:
        stores = [make(kind, tmp_path) for kind in (*KINDS, "memory")]
        report = await import_histories(stores[0], given(histories))
        assert (report.imported, report.refused) == (len(histories), [])
        first = await index(stores[0])
        for before, store in pairwise(stores):
            report = await import_histories(store, given(await collected(before)))
            assert (report.imported, report.refused) == (len(histories), [])
            assert await collected(store) == histories
            assert await index(store) == first
        for store in stores:
            await store.close()

    asyncio.run(go())


@pytest.mark.parametrize("kernel", ["rust", "pure"])
def test_both_kernels_import_alike(kernel: KernelName, tmp_path: Path) -> None:
    histories = reference_histories()

    async def test(store: FlowEventStore) -> None:
        assert (await import_histories(store, given(histories), kernel=kernel)).imported == len(histories)
        assert await collected(store) == histories

    on("memory", tmp_path, test)


def test_an_imported_run_was_never_parked_and_can_be_claimed(kind: str, tmp_path: Path) -> None:
    open_run = "".join(Story(RUST, "r").batch(created(), started(), wait("w", LATER)).lines.decode())
    ended = Story(RUST, "e").batch(created(), ENDED).lines

    async def test(store: FlowEventStore) -> None:
        await import_histories(store, given({"e": ended, "r": open_run.encode()}))
        state = await store.lease("r")
        assert (state.parked_sequence, state.owner, state.epoch, state.hold) == (-1, None, 0, None)
        assert [claimed.run_id for claimed in await store.claim("me", 5, ttl_ns=SECOND)] == ["r"]

    on(kind, tmp_path, test)


def test_an_imported_run_goes_on(kind: str, tmp_path: Path) -> None:
    flow = Flow()

    @flow.workflow(name="demo", version="1")
    def demo(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", "double", ctx.input)
        return ctx.complete(ctx.step_output("a"))

    @flow.step
    def double(n: int) -> int:
        return 2 * n

    lines = Story(RUST, "r").batch(created(input=21), started()).lines

    async def test(store: FlowEventStore) -> None:
        await import_histories(store, [Stored("r", lines)])
        async with FlowEngine(flow, store) as engine:
            assert (await engine.drive("r")).output == 42
        assert (await store.history("r")).startswith(lines)

    on(kind, tmp_path, test)


# refusals ------------------------------------------------------------------------------------------------------


def test_a_prune_beside_an_export_does_not_stop_it(kind: str, tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        for run_id in "abc":
            await Story(RUST, run_id).write(store, created(), started(), ENDED)
        found: list[str] = []
        async for stored in stored_histories(store):
            found.append(stored.run_id)
            await store.prune(MAX_NS, RunSelection(run_ids=["b"]))
        assert found == ["a", "c"]

    on(kind, tmp_path, test)


def test_what_cannot_be_taken_over_is_named_and_the_others_go_on(kind: str, tmp_path: Path) -> None:
    good = Story(RUST, "good").batch(created(), started()).lines
    gap = Story(RUST, "gap").batch(created(), started(), ENDED).lines.splitlines(keepends=True)
    sources = {
        "../evil": good,
        "broken": b'{"run_id":"broken"\n',
        "empty": b"",
        "gap": gap[0] + gap[2],
        "good": good,
        "other": good,
        "x" * 201: good,
        "\ud800": good,
        "a\0b": good,
    }

    async def test(store: FlowEventStore) -> None:
        report = await import_histories(store, given(sources))
        assert (report.imported, report.present, report.events) == (1, 0, 2)
        reasons = dict(report.refused)
        assert reasons.keys() == sources.keys() - {"good"}
        assert "not valid (characters)" in reasons["../evil"]
        assert "not valid (length)" in reasons["x" * 201]
        assert "event 1 of its history" in reasons["broken"] and "malformed" in reasons["broken"]
        assert "event 2 of its history" in reasons["gap"] and "sequence is 3 where 2 was due" in reasons["gap"]
        assert "foreign_run" in reasons["other"]
        assert await store.run_ids() == ["good"]

    on(kind, tmp_path, test)


def test_a_history_that_the_store_cannot_hold_is_refused_alone(kind: str, tmp_path: Path) -> None:
    histories = {run_id: Story(RUST, run_id).batch(created(), started(), wait("w-w", LATER)).lines for run_id in "abc"}
    histories["b"] = histories["b"].replace(b"w-w", b"w\\u0000w")

    async def test(store: FlowEventStore) -> None:
        report = await import_histories(store, given(histories))
        if kind == "postgres":
            assert [refusal.run_id for refusal in report.refused] == ["b"]
            assert "U+0000" in report.refused[0].reason
        assert await store.run_ids() == sorted(histories.keys() - {refusal.run_id for refusal in report.refused})
        assert report.imported == (2 if kind == "postgres" else 3)

    on(kind, tmp_path, test)


def test_a_damaged_log_in_the_store_refuses_its_run_alone(tmp_path: Path) -> None:
    histories = {run_id: Story(RUST, run_id).batch(created(), started()).lines for run_id in "abc"}
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "b.jsonl").write_bytes(b"nonsense\n")

    async def test() -> None:
        store = JsonlEventStore(folder)
        report = await import_histories(store, given(histories))
        assert report.imported == 2
        assert [refusal.run_id for refusal in report.refused] == ["b"]
        assert "line 1 of" in report.refused[0].reason
        await store.close()

    asyncio.run(test())


def test_a_run_that_is_there_is_left_as_it_is(kind: str, tmp_path: Path) -> None:
    story, rival = Story(RUST, "r"), Story(RUST, "r")
    begun = story.batch(created(), started())
    other = rival.batch(created(name="other"), started())

    async def test(store: FlowEventStore) -> None:
        assert (await import_histories(store, [Stored("r", begun.lines)])).imported == 1
        story.accept(begun)
        report = await import_histories(store, [Stored("r", begun.lines)])
        assert (report.imported, report.present, report.refused) == (0, 1, [])
        await story.write(store, wait("w", LATER))  # it has gone on since
        assert (await import_histories(store, [Stored("r", begun.lines)])).present == 1
        before = await store.history("r")
        for lines in (other.lines, before + b"x"):
            ((run_id, reason),) = (await import_histories(store, [Stored("r", lines)])).refused
            assert (run_id, reason) == ("r", "it is there with another history")
        assert await store.history("r") == before

    on(kind, tmp_path, test)


def test_an_active_token_of_another_run_refuses_the_import_by_the_runs_name(kind: str, tmp_path: Path) -> None:
    histories = {
        "clash": Story(RUST, "clash").batch(created(), hook("h", "canary-x")).lines,
        "free": Story(RUST, "free").batch(created(), hook("h", "canary-y")).lines,
        "over": Story(RUST, "over").batch(created(), hook("h", "canary-x"), ENDED).lines,
    }

    async def test(store: FlowEventStore) -> None:
        await Story(RUST, "owner").write(store, created(), hook("mine", "canary-x"))
        report = await import_histories(store, given(histories))
        ((run_id, reason),) = report.refused
        assert (run_id, report.imported) == ("clash", 2)
        assert "owner" in reason and "canary" not in reason
        assert await store.run_ids() == ["free", "over", "owner"]

    on(kind, tmp_path, test)


def test_a_pruned_run_is_not_brought_back(kind: str, tmp_path: Path) -> None:
    story = Story(RUST, "r")
    lines = story.batch(created(), ENDED).lines

    async def test(store: FlowEventStore) -> None:
        await import_histories(store, [Stored("r", lines)])
        await store.prune(LATER)
        ((_, reason),) = (await import_histories(store, [Stored("r", lines)])).refused
        assert "was pruned" in reason

    on(kind, tmp_path, test)


def test_an_import_that_was_cut_short_is_finished_by_the_next(kind: str, tmp_path: Path) -> None:
    histories = random_histories(2, 300)

    class Cut(Exception):
        pass

    def cut() -> Iterator[Stored]:
        yield from given(histories)[:270]
        raise Cut

    async def attempt(store: FlowEventStore, source: Iterable[Stored]) -> ImportReport:
        return await import_histories(store, source)

    async def test(store: FlowEventStore) -> None:
        with pytest.raises(Cut):
            await attempt(store, cut())
        there = len(await store.run_ids())
        assert 0 < there < 300
        report = await attempt(store, given(histories))
        assert (report.present, report.imported, report.refused) == (there, 300 - there, [])
        assert await collected(store) == histories

    on(kind, tmp_path, test)


# links ---------------------------------------------------------------------------------------------------------


def test_links_come_along_in_any_order_and_to_missing_runs(kind: str, tmp_path: Path) -> None:
    histories = {
        "a": Story(RUST, "a").batch(created(), child("x", "b"), ENDED).lines,
        "b": Story(RUST, "b").batch(created(), child("x", "a"), ENDED).lines,
        "c": Story(RUST, "c").batch(created(), child("x", "gone"), ENDED).lines,
        "d": Story(RUST, "d").batch(created(), child("x", "open"), ENDED).lines,
        "open": Story(RUST, "open").batch(created()).lines,
    }

    async def test(store: FlowEventStore) -> None:
        report = await import_histories(store, given(histories))
        assert (report.imported, report.missing) == (5, ["gone"])
        pruned = await store.prune(LATER)
        assert sorted(pruned.deleted.first) == ["a", "b"]
        assert sorted(pruned.referenced.first) == ["c", "d"]

    on(kind, tmp_path, test)


def test_links_are_known_after_a_folder_is_opened_again(tmp_path: Path) -> None:
    async def go() -> None:
        store = JsonlEventStore(tmp_path)
        await Story(RUST, "kid").write(store, created(), ENDED)
        await Story(RUST, "parent").write(store, created(), child("x", "kid"))
        await store.close()
        again = JsonlEventStore(tmp_path)
        assert (await again.prune(LATER)).referenced.first == ["kid"]
        await again.close()

    asyncio.run(go())


# files ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_the_store_reads_it(tmp_path: Path) -> None:
    first, second = (Story(RUST, "r").batch(created(), started()).lines.splitlines() for _ in range(2))
    (tmp_path / "marked.jsonl").write_bytes(b" " + first[0] + b"\n\n" + first[1] + b"\n")
    (tmp_path / "torn.jsonl").write_bytes(second[0] + b"\n" + second[1][:40])
    (tmp_path / "whole.jsonl").write_bytes(second[0] + b"\n" + second[1])
    (tmp_path / "notes.txt").write_text("not a history")
    marked, torn, whole = folder_histories(tmp_path)
    assert marked == Stored("marked", first[0] + b"\n" + first[1] + b"\n")
    assert torn == Stored("torn", second[0] + b"\n", "left out a torn tail of 40 bytes")
    assert whole == Stored("whole", second[0] + b"\n" + second[1] + b"\n")


def test_only_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "r.jsonl").write_bytes(Story(RUST, "r").batch(created()).lines)
    assert [stored.run_id for stored in folder_histories(tmp_path)] == ["r"]


def test_a_damaged_file_is_refused_by_its_line(tmp_path: Path) -> None:
    lines = Story(RUST, "r").batch(created(), started(), ENDED).lines.splitlines()
    (tmp_path / "r.jsonl").write_bytes(lines[0] + b"\n" + lines[1][:-1] + b"\n" + lines[2] + b"\n")

    async def test(store: FlowEventStore) -> None:
        ((run_id, reason),) = (await import_histories(store, folder_histories(tmp_path))).refused
        assert run_id == "r" and "event 2 of its history" in reason

    on("memory", tmp_path, test)


def test_the_lines_of_a_stream_may_be_mixed() -> None:
    histories = random_histories(3, 5)
    queues = [lines.splitlines(keepends=True) for lines in histories.values()]
    random, mixed = Random(4), b""
    while left := [queue for queue in queues if queue]:
        mixed += random.choice(left).pop(0) + random.choice((b"", b"\n", b" \r\n"))
    found = {stored.run_id: stored.lines for stored in stream_histories(io.BytesIO(mixed.rstrip(b"\r\n ")))}
    assert found == histories


def test_a_log_in_a_stream_counts_as_far_as_its_batches_are_whole() -> None:
    story = Story(RUST, "r")
    whole = story.batch(created(), started())
    story.accept(whole)
    torn = story.batch(wait("a", LATER), wait("b", LATER)).lines.splitlines(keepends=True)
    other = Story(RUST, "o").batch(created()).lines
    log = (
        b"".join(b" " + line for line in whole.lines.splitlines(keepends=True)[:-1]) + whole.lines.splitlines(True)[-1]
    )
    first, second = stream_histories(io.BytesIO(log + b" " + torn[0] + other))
    assert (first.run_id, first.lines) == ("r", whole.lines)
    assert first.note is not None and "torn tail" in first.note
    assert second == Stored("o", other)
    (first,) = stream_histories(io.BytesIO(log + b" " + torn[0] + torn[1]))
    assert first == Stored("r", whole.lines + b"".join(torn))


def test_a_line_written_by_hand_is_put_to_its_run() -> None:
    line = Story(RUST, "r").batch(created()).lines
    reordered = json.loads(line)
    by_hand = json.dumps({"sequence": 1, **reordered}).encode()
    (stored,) = stream_histories(io.BytesIO(by_hand + b"\n"))
    assert stored == Stored("r", by_hand + b"\n")


@pytest.mark.parametrize("line", [b"[]", b'{"a":1}', b'{"run_id":7}', b"{", b"\xff", b"[" * 5000])
def test_a_line_without_a_run_is_refused_before_anything_is_given(line: bytes) -> None:
    good = Story(RUST, "r").batch(created()).lines
    with pytest.raises(Serialization, match="line 3"):
        next(stream_histories(io.BytesIO(good + b"\n" + line + b"\n")))


def test_a_selection_says_which_histories_go_out(tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        await Story(RUST, "a1").write(store, created(), ENDED)
        await Story(RUST, "a2").write(store, created(name="other"))
        await Story(RUST, "b1").write(store, created())
        for wanted, meant in (
            (RunSelection(status=("completed",)), ["a1"]),
            (RunSelection(name="demo", version="1"), ["a1", "b1"]),
            (RunSelection(prefix="a"), ["a1", "a2"]),
            (RunSelection(run_ids=("b1", "a1")), ["a1", "b1"]),
        ):
            assert list(await collected(store, wanted)) == meant
        with pytest.raises(RunNotFound, match="'never'"):
            await collected(store, RunSelection(run_ids=("a1", "never")))
        with pytest.raises(ValueError, match="not both"):
            await collected(store, RunSelection(run_ids=("a1",), prefix="a"))

    on("sqlite", tmp_path, test)
