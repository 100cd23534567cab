"""Scenario 60: real processes, killed by SIGKILL at each commit boundary, over each of the durable stores."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.child import Life, open_files
from crash.program import APPROVAL, DOOMED, MAIN, everything, summary
from crash.test_every_cut import settled_in, steps_of
from perdure import FlowEngine
from perdure.kernel import KernelName
from perdure.rebuild import IndexRebuilder, Unreadable
from perdure.stores.base import Append
from perdure.testing.postgres import shared_server


class Nursery:
    """Processes of one test, one after the other."""

    def __init__(self) -> None:
        import perdure

        path = os.pathsep.join(str(Path(file).parents[1]) for file in (perdure.__file__, __file__))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "crash.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )

    def process(self, life: Life, *, until_approval: bool) -> int:
        """One process from its birth to its end; gives its exit code."""
        orders, answers = self._server.stdin, self._server.stdout
        assert orders is not None
        assert answers is not None
        orders.write(
            json.dumps([str(life.folder), life.kernel, life.kill_at, life.side, life.store, until_approval]) + "\n"
        )
        orders.flush()
        return int(answers.readline())

    def close(self) -> None:
        self._server.communicate()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def effects(life: Life) -> list[str]:
    return life.ledger.read_text().splitlines() if life.ledger.exists() else []


async def settled_steps(life: Life) -> set[str]:
    store, _ = await open_files(life)
    done = await settled_in(store)
    await store.close()
    return done


async def approve(life: Life) -> None:
    """The host's callback arrives in a process of its own, which appends and drives nothing."""
    store, _ = await open_files(life)
    async with FlowEngine(everything(_never), store, kernel=life.kernel) as engine:
        await engine.resume_hook_by_token(APPROVAL, {"by": "ada"}, drive=False)
    await store.close()


def _never(line: str) -> None:
    raise AssertionError(f"the host drove {line}")


def part_of_life(nursery: Nursery, life: Life, *, until_approval: bool) -> None:
    """Processes follow one another until this part is over; one is killed at most."""
    done: set[str] = set()
    before: list[str] = []
    deaths = 0
    while (code := nursery.process(life, until_approval=until_approval)) != 0:
        deaths += 1
        assert (code, deaths) == (-signal.SIGKILL, 1)
        done, before = asyncio.run(settled_steps(life)), effects(life)
    assert not done & steps_of(effects(life)[len(before) :]), "something committed ran again"


def commits_of(life: Life) -> int:
    return life.commits.stat().st_size


async def copied(life: Life, to: Life) -> None:
    """The life as it stands goes on somewhere else, too."""
    shutil.copytree(life.folder, to.folder)
    if life.store.startswith("postgresql"):
        store, _ = await open_files(life)
        other, _ = await open_files(to)
        histories = [(run_id, await store.history(run_id)) for run_id in await store.run_ids()]
        batches = [batch for batch in IndexRebuilder().rebuild(histories) if not isinstance(batch, Unreadable)]
        assert len(await other.commit([Append(batch) for batch in batches])) == 2
        await store.close()
        await other.close()


async def ends(life: Life) -> list[object]:
    store, _ = await open_files(life)
    async with FlowEngine(everything(_never), store, kernel=life.kernel) as engine:
        found = [summary(await engine.snapshot(run_id)) for run_id in (MAIN, DOOMED)]
    await store.close()
    return found


@pytest.mark.parametrize(
    ("store", "kernel", "side"),
    [("sqlite", "rust", "before"), ("jsonl", "pure", "after"), ("postgres", "rust", "before")],
)
def test_60_killed_at_every_commit(nursery: Nursery, tmp_path: Path, store: str, kernel: KernelName, side: str) -> None:
    """Engine killed (real process, SIGKILL) at each append boundary, reopened on the same store → same final output as the
    uninterrupted run; nothing committed ran again, and no more than the outcomes of one commit ran twice.

    One shell: the blocking one dies in the same drive. `commit="each"` is cut at each of its commits in `test_every_cut.py`.
    """
    address = shared_server().url if store == "postgres" else store
    whole = Life(tmp_path / "whole", kernel, store=address)
    whole.folder.mkdir()
    part_of_life(nursery, whole, until_approval=True)
    first_part = commits_of(whole)
    asyncio.run(approve(whole))
    approved = Life(tmp_path / "approved", kernel, store=address)
    asyncio.run(copied(whole, approved))
    part_of_life(nursery, whole, until_approval=False)
    end, expected = asyncio.run(ends(whole)), effects(whole)
    assert len(expected) == len(set(expected))
    assert commits_of(whole) > 20
    for number in range(1, commits_of(whole) + 1):
        life = Life(tmp_path / f"{number}", kernel, number, side, address)
        if number > first_part:
            asyncio.run(copied(approved, life))
        else:
            life.folder.mkdir()
            part_of_life(nursery, life, until_approval=True)
            asyncio.run(approve(life))
        part_of_life(nursery, life, until_approval=False)
        assert commits_of(life) >= number
        assert asyncio.run(ends(life)) == end, f"{side} commit {number}"
        assert set(effects(life)) == set(expected), f"{side} commit {number}"
        assert len(effects(life)) - len(expected) <= 3, f"{side} commit {number}: more than one commit was run again"
