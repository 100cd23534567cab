"""The rows of queues in memory, in SQLite and in PostgreSQL are one thing: random traces get equal answers from all three."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from scenarios.kit import Clock

from perdure import PostgresEventStore, SqliteEventStore
from perdure.stores.memory_queue import MemoryTaskRows
from perdure.stores.task_rows import MAX_MICROSECONDS, NewTask, TaskRow, TaskRows
from perdure.testing.postgres import shared_server

SECOND = 1_000_000_000
QUEUES = ("one", "two")


@dataclass
class Trace:
    """Draws calls; ids of leases that were given out are used again, and so are dead and foreign ones."""

    random: Random
    leases: list[str] = field(default_factory=lambda: ["0" * 32])

    def id(self) -> str:
        return uuid.UUID(int=self.random.getrandbits(128), version=4).hex

    def lease(self) -> str:
        return self.random.choice(self.leases[-6:])

    def call(self) -> tuple[str, tuple[Any, ...]]:
        random = self.random
        name = random.choice(
            ("put",) * 4 + ("take",) * 4 + ("beat", "remove", "put_back", "put_back", "bury", "redrive")
        )
        name = name if random.random() < 0.85 else random.choice(("requeue", "bury_older", "drop", "purge"))
        queue = random.choice(QUEUES)
        if name == "put":
            return name, (queue, [self.task() for _ in range(random.randint(1, 4))], random.choice((None, None, 3, 6)))
        if name == "take":
            self.leases.append(self.id())
            return name, (queue, self.leases[-1], random.choice((1, 5)) * SECOND + random.randint(0, 1500))
        if name == "beat":
            old = self.lease()
            self.leases.append(self.id())
            return name, (queue, old, self.leases[-1], 3 * SECOND)
        if name == "put_back":
            return name, (queue, self.lease(), random.choice((0, 1, 1500, SECOND)), "busy", random.choice((None, 2, 3)))
        if name == "bury":
            return name, (queue, self.lease(), "no")
        if name in ("requeue", "bury_older"):
            cutoff = random.choice((MAX_MICROSECONDS, -MAX_MICROSECONDS, "now"))
            return name, (queue, cutoff, *(["swept"] if name == "bury_older" else []))
        if name == "redrive":
            return name, (queue, self.lease(), self.id())
        if name == "purge":
            return name, (f"r{random.randint(0, 3)}",)
        return name, (queue, self.lease())

    def task(self) -> NewTask:
        drives = self.random.random() < 0.5
        run_id = None if not drives and self.random.random() < 0.3 else f"r{self.random.randint(0, 3)}"
        return NewTask(self.id(), b"%d" % self.random.randint(0, 99), run_id, drives)


async def pictures(rows: TaskRows) -> list[object]:
    """All that can be asked of the queues."""
    return [
        (await rows.counts(queue), await rows.next_at(queue), await rows.dead(queue, None, 1000)) for queue in QUEUES
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_a_random_trace_gets_equal_answers(seed: int, tmp_path: Path, clock: Clock) -> None:
    random, trace = Random(f"time {seed}"), Trace(Random(f"rows {seed}"))
    sqlite = SqliteEventStore(tmp_path / "runs.db", clock, "NORMAL")
    postgres = PostgresEventStore(shared_server().url, clock, schema=f"rows {seed}")
    kinds: list[TaskRows] = [MemoryTaskRows(clock), sqlite.task_rows(), postgres.task_rows()]
    given = 0
    try:
        for _ in range(150):
            clock.ns += random.choice((0, 0, 1, 999, random.randint(0, 3) * SECOND))
            name, arguments = trace.call()
            arguments = tuple(clock.ns // 1000 if value == "now" else value for value in arguments)
            first, *others = [await getattr(rows, name)(*arguments) for rows in kinds]
            assert others == [first] * 2, (name, arguments)
            given += isinstance(first, TaskRow)
            first, *others = [await pictures(rows) for rows in kinds]
            assert others == [first] * 2, (name, arguments)
    finally:
        await sqlite.close()
        await postgres.close()
    assert given > 5
