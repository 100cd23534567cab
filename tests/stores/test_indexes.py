"""The index tables equal what a replay of the histories gives, also after the process that wrote was killed (invariant 7)."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import psycopg
import pytest
from stores.tables import compare_with_replay

import perdure
from perdure import Flow, FlowEngine
from perdure.errors import StoreError
from perdure.instant import Instant, due_key
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, load
from perdure.stores import JsonlEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing._stories import SECOND, START, Story, created, wait
from perdure.testing.postgres import shared_server

WRITER = """
import asyncio, sys
from random import Random

from perdure.errors import FlowError
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, load
from perdure.stores import PostgresEventStore, open_store
from perdure.stores.base import Lease
from perdure.testing._stories import Story, child, random_drafts

PURE = load("pure")

async def write(store, number, seed):
    # Each writer has runs of its own, one after the other; tokens and links are shared.
    random, made = Random(seed * 100 + number), 0
    while True:
        run_id = f"r{seed}-{number}-{made}"
        made += 1
        story = Story(PURE, run_id)
        while not story.run.terminal:
            drafts = random_drafts(story, random, [f"canary-{n}" for n in range(4)])
            if random.random() < 0.1:
                drafts.append({"type": "run_failed", "error": "e"})
            elif random.random() < 0.3:
                drafts.append(child(f"c{story.run.last_sequence}", f"r{seed}-{random.randint(0, 3)}-0"))
            try:
                lease = Lease("me", 10**9, claim="if_free", after=random.choice(("keep", "park", "free")))
                await story.write(store, *drafts, lease=lease)
            except FlowError:
                continue
            print(run_id, story.run.last_sequence, flush=True)

async def main(address, schema, seed):
    store = PostgresEventStore(address, schema=schema) if schema else open_store(address)
    await asyncio.gather(*(write(store, number, seed) for number in range(4)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def killed_writer(address: str, schema: str, seed: int, answers: int) -> dict[str, int]:
    """Writes until so many commits are acknowledged, and is killed; gives the last sequences it was told."""
    path = os.pathsep.join(str(Path(file).parents[1]) for file in (perdure.__file__,))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, address, schema, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(answers)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.communicate()[0].splitlines(keepends=True)
    whole = [line.split() for line in lines if line.endswith("\n")]
    assert len(whole) >= answers
    if schema:
        until_its_sessions_have_ended()
    return {run_id: int(sequence) for run_id, sequence in whole}


def until_its_sessions_have_ended() -> None:
    """What a killed client has sent, a server may still do."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'killed writer'"
    with psycopg.connect(shared_server().url, autocommit=True) as connection:
        while connection.execute(sessions).fetchone() != (0,):
            time.sleep(0.01)


def jsonl(folder: Path) -> tuple[str, str, Callable[[], FlowEventStore]]:
    return f"jsonl:{folder / 'runs'}", "", lambda: JsonlEventStore(folder / "runs")


def sqlite(folder: Path) -> tuple[str, str, Callable[[], FlowEventStore]]:
    return str(folder / "runs.db"), "", lambda: SqliteEventStore(folder / "runs.db")


def postgres(folder: Path) -> tuple[str, str, Callable[[], FlowEventStore]]:
    url, schema = shared_server().url, f"crash {folder.name}"
    return f"{url}?application_name=killed%20writer", schema, lambda: PostgresEventStore(url, schema=schema)


@pytest.mark.parametrize("medium", [jsonl, sqlite, postgres])
def test_65_indexes_equal_a_replay_after_a_kill_at_a_random_moment(
    tmp_path: Path, medium: Callable[[Path], tuple[str, str, Callable[[], FlowEventStore]]]
) -> None:
    """Indexed queries equal the replay-based ones on random histories, though their writer died three times."""
    address, schema, opened = medium(tmp_path)
    random, acknowledged = Random(tmp_path.name), dict[str, int]()

    async def check() -> None:
        store = opened()
        last = await store.last_sequences(list(acknowledged))
        assert all(last[run_id] >= sequence for run_id, sequence in acknowledged.items())
        await compare_with_replay(store)
        for run_id, sequence in last.items():
            run = load("rust").project(run_id, await store.history(run_id), DEFAULT_MAX_EVENT_BYTES)
            assert run.last_sequence == sequence
        await store.close()

    for life in range(3):
        acknowledged |= killed_writer(address, schema, life, random.randint(5, 120))
        asyncio.run(check())


def test_an_index_that_names_what_no_history_holds_is_said_and_not_asked_for_ever(tmp_path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(tmp_path / "runs.db")
        async with FlowEngine(Flow(), store, kernel="pure") as engine:
            await Story(load("pure"), "r").write(store, created(), wait("w", START))
            assert await engine.next_wakeup(Instant(START)) is not None
            with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
                connection.execute("INSERT INTO flow_wakeups VALUES ('r', 0, 'v', ?)", (due_key(START - SECOND),))
            with pytest.raises(StoreError, match="names wait 'v' of run 'r', which its history does not hold"):
                await engine.next_wakeup(Instant(START))
        await store.close()

    asyncio.run(asyncio.wait_for(test(), 60))
