"""Group commit on its own: how groups form, who hears what, and that one bad call harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import cast

import pytest

from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.kernel import Batch
from perdure.stores.base import Append, Committed
from perdure.stores.group import Answer, GroupCommitter


@dataclass(frozen=True)
class OneEvent:
    """As much of a batch as a committer looks at."""

    run_id: str
    last_sequence: int = 1


def batch(run_id: str, last_sequence: int = 1) -> Append:
    return Append(cast(Batch, OneEvent(run_id, last_sequence)))


class Medium:
    """A writer that waits at a gate, so that a test says what is queued while it works."""

    def __init__(self) -> None:
        self.gate = Event()
        self.entered = Event()
        self.groups: list[list[str]] = []
        self.fails: Callable[[Sequence[Append]], Exception | None] = lambda appends: None

    def write(self, appends: Sequence[Append]) -> list[Answer]:
        self.entered.set()
        assert self.gate.wait(30)
        self.groups.append([append.batch.run_id for append in appends])
        failure = self.fails(appends)
        if failure is not None:
            raise failure
        return [Committed(append.batch.last_sequence) for append in appends]


def run(test: Callable[[Medium, GroupCommitter], Awaitable[None]]) -> None:
    medium = Medium()
    with ThreadPoolExecutor(1) as executor:
        try:
            asyncio.run(_as_coroutine(test(medium, GroupCommitter(medium.write, executor, "the test store"))))
        finally:
            medium.gate.set()


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


async def queue(committer: GroupCommitter, *calls: Sequence[Append]) -> list[asyncio.Task[list[Answer]]]:
    """Puts the calls into the queue, in order."""
    tasks = [asyncio.create_task(committer.commit(call)) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def busy(medium: Medium, committer: GroupCommitter) -> asyncio.Task[list[Answer]]:
    """Lets the writer begin a group of one and keeps it there."""
    (first,) = await queue(committer, [batch("first")])
    await asyncio.to_thread(medium.entered.wait, 30)
    return first


def test_what_arrives_during_a_write_is_the_next_group() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        first = await busy(medium, committer)
        others = await queue(committer, *([batch(f"r{number}", number)] for number in range(1, 10)))
        medium.gate.set()
        assert await first == [Committed(1)]
        assert await asyncio.gather(*others) == [[Committed(number)] for number in range(1, 10)]
        assert [len(group) for group in medium.groups] == [1, 9]

    run(test)


def test_a_group_holds_one_batch_of_a_run_and_calls_are_not_split() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        await busy(medium, committer)
        calls = await queue(
            committer, [batch("a"), batch("b")], [batch("b"), batch("c")], [batch("d")], [batch("b", 3)]
        )
        medium.gate.set()
        await asyncio.gather(*calls)
        assert medium.groups == [["first"], ["a", "b", "d"], ["b", "c"], ["b"]]

    run(test)


def test_a_caller_cancelled_before_its_group_wrote_nothing() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        first = await busy(medium, committer)
        gone, stays = await queue(committer, [batch("gone")], [batch("stays")])
        first.cancel()
        gone.cancel()
        medium.gate.set()
        assert await stays == [Committed(1)]
        assert medium.groups == [["first"], ["stays"]]

    run(test)


@pytest.mark.parametrize("kind", [StoreUnavailable, OutcomeUnknown])
def test_a_failure_of_the_medium_is_told_to_every_call_of_the_group(kind: type[StoreError]) -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        medium.fails = lambda appends: kind("no disk") if len(appends) > 1 else None
        await busy(medium, committer)
        calls = await queue(committer, [batch("a")], [batch("b")])
        medium.gate.set()
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(failure) for failure in failures] == [kind, kind]
        assert failures[0] is not failures[1]
        (again,) = await queue(committer, [batch("a")])
        assert await again == [Committed(1)]

    run(test)


def test_a_batch_that_cannot_be_written_fails_alone() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        medium.fails = lambda appends: OverflowError("bad") if any(a.batch.run_id == "bad" for a in appends) else None
        await busy(medium, committer)
        calls = await queue(committer, [batch("a")], [batch("bad")], [batch("c")])
        medium.gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[0] == answers[2] == [Committed(1)]
        assert isinstance(answers[1], OverflowError)
        assert medium.groups[1:] == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]

    run(test)


def test_other_work_takes_its_turn_between_two_groups() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        await busy(medium, committer)
        (queued,) = await queue(committer, [batch("queued")])
        done = asyncio.create_task(committer.between_groups(lambda: [len(group) for group in medium.groups]))
        gone = asyncio.create_task(committer.between_groups(lambda: medium.groups.append(["gone"])))
        await asyncio.sleep(0)
        gone.cancel()
        medium.gate.set()
        assert await done == [1]
        assert await queued == [Committed(1)]
        assert medium.groups == [["first"], ["queued"]]

    run(test)


def test_other_work_that_fails_is_told_to_its_caller_only() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        medium.gate.set()
        with pytest.raises(ZeroDivisionError):
            await committer.between_groups(lambda: 1 // 0)
        assert await committer.commit([batch("next")]) == [Committed(1)]
        committer.close()
        with pytest.raises(StoreError, match="the test store is closed"):
            await committer.between_groups(lambda: None)

    run(test)


def test_a_closed_committer_takes_no_calls_and_finishes_those_it_has() -> None:
    async def test(medium: Medium, committer: GroupCommitter) -> None:
        first = await busy(medium, committer)
        (queued,) = await queue(committer, [batch("queued")])
        committer.close()
        with pytest.raises(StoreError, match="the test store is closed"):
            await committer.commit([batch("late")])
        medium.gate.set()
        assert [await first, await queued] == [[Committed(1)], [Committed(1)]]

    run(test)


def test_callers_whose_loop_is_gone_do_not_stop_the_writer() -> None:
    medium = Medium()
    with ThreadPoolExecutor(1) as executor:
        committer = GroupCommitter(medium.write, executor, "the test store")

        async def leave() -> None:
            await busy(medium, committer)

        asyncio.run(leave())
        medium.gate.set()
        assert asyncio.run(committer.commit([batch("next")])) == [Committed(1)]
