"""Group commit on its own: how groups form, who hears what, and that one bad call harms no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock, get_ident
from typing import Any, cast

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


class SlowToBegin:
    """Turns that a loop may take at any time. The first one about to write waits until it is told to go on."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.about_to = Event()
        self.go_on = Event()

    def is_quick(self) -> bool:
        return True

    def take(self, *, wait: bool) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> None:
        if not self.about_to.is_set():
            self.about_to.set()
            assert self.go_on.wait(30)
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_a_loop_that_was_about_to_write_when_another_thread_closed_writes_nothing() -> None:
    medium, turns = Medium(), SlowToBegin()
    medium.gate.set()
    executor, loops = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
    committer = GroupCommitter(medium.write, executor, "the test store", turns)
    committer._on_a_loop = cast(Any, turns)  # where it waits to write
    committer._alone = "late"  # the last group was a call of this run
    late = loops.submit(lambda: asyncio.run(_as_coroutine(committer.commit([batch("late")]))))
    assert turns.about_to.wait(30)
    queued = loops.submit(lambda: asyncio.run(_as_coroutine(committer.commit([batch("queued")]))))
    while not committer._queue:
        time.sleep(0.001)
    committer.close()
    executor.shutdown()  # what a store does next
    assert medium.groups == [["queued"]]
    assert queued.exception(30) is None
    turns.go_on.set()
    with pytest.raises(StoreError, match="the test store is closed"):
        late.result(30)
    assert medium.groups == [["queued"]]
    loops.shutdown()


def run(test: Callable[[Medium, GroupCommitter], Awaitable[None]]) -> None:
    medium = Medium()
    with ThreadPoolExecutor(1) as executor:
        try:
            asyncio.run(_as_coroutine(test(medium, GroupCommitter(medium.write, executor, "the test store"))))
        finally:
            medium.gate.set()


async def _as_coroutine(awaitable: Awaitable[object]) -> None:
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


# on the caller's loop ---------------------------------------------------------------------------------------------


class Turns:
    """Turns that a test gives and takes away."""

    def __init__(self) -> None:
        self.quick = True
        self.free = True
        self.refused: Exception | None = None
        self.taken: list[bool] = []
        self.out = 0

    def is_quick(self) -> bool:
        return self.quick

    def take(self, *, wait: bool) -> bool:
        if wait and self.refused is not None:
            raise self.refused
        if not (wait or self.free):
            return False
        self.taken.append(wait)
        self.out += 1
        assert self.out == 1
        return True

    def release(self) -> None:
        self.out -= 1


class Quick(Medium):
    """A writer that notes which thread it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.set()
        self.turns = Turns()
        self.threads: list[int] = []

    def write(self, appends: Sequence[Append]) -> list[Answer]:
        self.threads.append(get_ident())
        assert self.turns.out == 1
        return super().write(appends)


def run_quick(test: Callable[[Quick, GroupCommitter], Awaitable[None]]) -> Quick:
    medium = Quick()
    with ThreadPoolExecutor(1) as executor:
        asyncio.run(_as_coroutine(test(medium, GroupCommitter(medium.write, executor, "the test store", medium.turns))))
    assert medium.turns.out == 0
    return medium


def test_a_quick_medium_is_written_on_the_loop_and_calls_that_are_ready_together_share_a_group() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        for number in range(1, 4):
            assert await committer.commit([batch("alone", number)]) == [Committed(number)]
        for _ in range(3):
            await asyncio.gather(*(committer.commit([batch(run_id)]) for run_id in "abcd"))
        assert await committer.commit([batch("alone")]) == [Committed(1)]

    medium = run_quick(test)
    assert medium.groups[:3] == [["alone"]] * 3
    assert medium.groups[3:] == [["a", "b", "c", "d"]] * 3 + [["alone"]]
    assert set(medium.threads) == {get_ident()}


def test_a_lone_run_that_commits_on_and_on_lets_the_loop_do_other_work() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(tick())
        for number in range(1, 101):
            await committer.commit([batch("alone", number)])
        other.cancel()
        assert ticks >= 100 // 4

    run_quick(test)


def test_a_lone_run_is_joined_by_the_others_that_come() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        async def commit_on(run_id: str) -> None:
            for number in range(1, 101):
                await committer.commit([batch(run_id, number)])

        for number in range(1, 101):
            await committer.commit([batch("alone", number)])
        await asyncio.gather(*(commit_on(run_id) for run_id in "abc"))

    medium = run_quick(test)
    assert medium.groups[:100] == [["alone"]] * 100
    assert len(medium.groups[100:]) < 110  # of 300 commits: but for the first few, each is written with two others


@pytest.mark.parametrize("slow", ["slow", "busy"])
def test_a_slow_medium_or_a_busy_one_is_written_by_the_thread(slow: str) -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        await committer.commit([batch("first")])
        medium.turns.quick, medium.turns.free = slow != "slow", slow != "busy"
        for _ in range(3):
            await committer.commit([batch("then")])
        await committer.between_groups(lambda: None)
        medium.turns.quick = medium.turns.free = True
        while committer._writing:  # noqa: ASYNC110 - no event tells of it: the thread looks once more whether something came
            await asyncio.sleep(0)
        await committer.commit([batch("last")])

    medium = run_quick(test)
    here = get_ident()
    assert [thread == here for thread in medium.threads] == [True, False, False, False, True]
    assert medium.turns.taken == [False, True, True, True, True, False]


def test_a_turn_that_does_not_come_is_told_to_everybody_who_waits() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        medium.turns.quick = False
        medium.turns.refused = StoreUnavailable("process 7 holds it")
        calls = [asyncio.create_task(committer.commit([batch(run_id)])) for run_id in "abb"]
        calls.append(asyncio.create_task(committer.between_groups(list)))
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(failure) for failure in failures] == [str(medium.turns.refused)] * 4
        assert len({id(failure) for failure in failures}) == 4
        medium.turns.refused = None
        assert await committer.commit([batch("a")]) == [Committed(1)]

    assert run_quick(test).groups == [["a"]]


def test_a_close_leaves_nothing_behind_that_a_loop_was_about_to_write() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        calls = [asyncio.create_task(committer.commit([batch(run_id)])) for run_id in "ab"]
        await asyncio.sleep(0)
        committer.close()
        assert await asyncio.gather(*calls) == [[Committed(1)]] * 2
        with pytest.raises(StoreError, match="closed"):
            await committer.commit([batch("late")])

    medium = run_quick(test)
    assert medium.groups == [["a", "b"]]
    assert medium.threads != [get_ident()]


def test_a_loop_that_ended_before_it_wrote_is_in_nobodys_way() -> None:
    medium = Quick()
    with ThreadPoolExecutor(1) as executor:
        committer = GroupCommitter(medium.write, executor, "the test store", medium.turns)
        loop = asyncio.new_event_loop()
        call = loop.create_task(committer.commit([batch("left")]))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop._ready.clear()  # type: ignore[attr-defined]  # a loop that is torn down does not run what is ready
        call.cancel()
        loop.close()
        assert asyncio.run(committer.commit([batch("next")])) == [Committed(1)]


def test_a_failure_on_the_loop_is_the_callers() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        await committer.commit([batch("first")])
        medium.fails = lambda appends: OutcomeUnknown("no disk")
        for run_id in ("alone", "again"):
            with pytest.raises(OutcomeUnknown):
                await committer.commit([batch(run_id)])
        medium.fails = lambda appends: None
        assert await committer.commit([batch("last")]) == [Committed(1)]

    run_quick(test)


def test_a_very_large_group_is_left_to_the_thread() -> None:
    async def test(medium: Quick, committer: GroupCommitter) -> None:
        await asyncio.gather(*(committer.commit([batch(f"r{number}")]) for number in range(200)))

    medium = run_quick(test)
    assert get_ident() not in medium.threads
    assert sum(len(group) for group in medium.groups) == 200
