"""R38: the same small program in the command form and in the async form opens the same set with each commit, does everything
else in the same order, and comes to the same end; so it does with a crash at any commit (R11, R18, R39)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from scenarios.kit import Clock, Crash

from coroutine.forms import flow_of
from perdure import FlowEngine
from perdure.stores import MemoryEventStore
from perdure.stores.base import Append

EXAMPLES = int(os.environ.get("FORMS", "60"))

_leaves = st.one_of(
    st.tuples(st.just("step"), st.just(""), st.sampled_from(["fine", "fine", "flaky", "fails"])),
    st.tuples(st.just("sleep"), st.just(""), st.none()),
    st.tuples(st.just("ask"), st.just(""), st.integers(1, 2)),
)


def _blocks(*operations: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.one_of(*operations), min_size=1, max_size=3).map(tuple)


def _around(name: str, blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(name), st.just(""), blocks)


def _groups(blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(blocks, min_size=1, max_size=3).map(tuple)
    return st.tuples(st.sampled_from(["gather", "race"]), st.just(""), branches)


# No time limit encloses clean-up, and groups with clean-up in them are not nested: there a signal meets another one that is
# being handled, which the command form would have to replay step by step.
_flat = _blocks(_leaves, _leaves, _around("attempt", _blocks(_leaves)), _around("timer", _blocks(_leaves)))
_limited = _blocks(_leaves, _leaves, _groups(_flat), _around("attempt", _flat), _around("limit", _flat))
_branch = _blocks(
    _leaves, _leaves, _around("limit", _limited), _around("guarded", _limited), _around("timer", _flat), _groups(_flat)
)
_PROGRAMS = _blocks(
    _leaves,
    _groups(_branch),
    _around("limit", _limited),
    _around("guarded", _limited),
    _around("attempt", _blocks(_leaves, _groups(_branch))),
    _around("timer", _branch),
)


def numbered(block: Any, path: str = "x") -> Any:
    """The same program with an id at each operation."""
    return tuple(
        (operation, f"{path}{number}", _inside(operation, value, f"{path}{number}-"))
        for number, (operation, _, value) in enumerate(block)
    )


def _inside(operation: str, value: Any, path: str) -> Any:
    if operation in ("gather", "race"):
        return tuple(numbered(branch, f"{path}{number}-") for number, branch in enumerate(value))
    return numbered(value, path) if isinstance(value, tuple) else value


class Store(MemoryEventStore):
    """Keeps what each commit held; loses one of them, and whoever made it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.commits: list[list[bytes]] = []
        self.lose = 0

    async def commit(self, appends: Sequence[Append]) -> Any:
        lines = [line for append in appends for line in append.batch.lines.splitlines()]
        if lines:
            if len(self.commits) + 1 == self.lose:
                self.lose = 0
                raise Crash
            self.commits.append(lines)
        return await super().commit(appends)

    def told(self) -> list[tuple[list[str], list[str]]]:
        """Of each commit what it opened, sorted, and the rest in its order."""
        found = []
        for lines in self.commits:
            events = [orjson.loads(line)["event"] for line in lines]
            texts = [(e["type"], orjson.dumps(e, option=orjson.OPT_SORT_KEYS).decode()) for e in events]
            opened = sorted(text for what, text in texts if what in ("step_created", "wait_created", "hook_created"))
            found.append((opened, [text for _, text in texts if text not in opened]))
        return found


async def live(store: Store, clock: Clock, block: Any, cancel_at: int, commit: Any, *, commands: bool) -> Any:
    """Drives the run to its end; where it stands decides what comes next, so that a second life goes the same way."""
    flow, workflow = flow_of(block, commands=commands)
    async with FlowEngine(flow, store, lease=False, commit=commit, record_tracebacks=False, clock=clock) as engine:
        await engine.start(workflow, run_id="r")
        for _ in range(100):
            at, cancelled, suspended = await engine.read(
                "r", lambda run: (run.last_sequence, run.cancellation is not None, run.suspensions())
            )
            if not suspended:
                snapshot = await engine.snapshot("r")
                return snapshot.status, snapshot.output, snapshot.error
            kind, subject, due = suspended[at * 7919 % len(suspended)]
            if cancel_at and at >= cancel_at and not cancelled:
                await engine.request_cancellation("r", "enough")
            elif kind == "hook":
                await engine.resume_hook("r", subject, f"answer to {subject}")
            elif kind == "wait":
                clock.ns = max(clock.ns, due or 0)
                await engine.resume_wait("r", subject)
            else:
                clock.ns = max(clock.ns, due or 0)
                await engine.resume_due_retries(clock.now)
    raise AssertionError("the run does not end")


async def compare(block: Any, cancel_at: int, commit: Any, crashes: list[int]) -> None:
    ends = []
    stores = []
    for commands in (True, False):
        clock = Clock()
        store = Store(clock)
        ends.append(await live(store, clock, block, cancel_at, commit, commands=commands))
        stores.append(store)
    assert ends[0][0] in ("completed", "failed", "cancelled")
    event(str(ends[0][0]))
    for number, (first, second) in enumerate(zip(stores[0].told(), stores[1].told(), strict=False), 1):
        assert first == second, f"commit {number}"
    assert len(stores[0].commits) == len(stores[1].commits)
    assert ends[0] == ends[1]
    for commands in (True, False):
        for crash in crashes:
            clock = Clock()
            store = Store(clock)
            store.lose = crash % len(stores[0].commits) + 1
            with pytest.raises(Crash):
                await live(store, clock, block, cancel_at, commit, commands=commands)
            again = await live(store, clock, block, cancel_at, commit, commands=commands)
            assert again == ends[0], f"after a crash at commit {crash % len(stores[0].commits) + 1}"


@settings(max_examples=EXAMPLES)
@given(
    _PROGRAMS.map(numbered),
    st.one_of(st.just(0), st.integers(1, 40)),
    st.sampled_from(["staged", "each"]),
    st.lists(st.integers(0, 100), max_size=2),
)
def test_both_forms_are_one_program(block: Any, cancel_at: int, commit: Any, crashes: list[int]) -> None:
    note(f"{block!r}, cancel at {cancel_at}")
    asyncio.run(compare(block, cancel_at, commit, crashes))
