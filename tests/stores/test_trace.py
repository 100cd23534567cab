"""One random trace of store calls through all four stores, on one clock, and no difference: answers, refusals with all their
fields, histories, listings, and the index tables as they stand in each (invariant 9)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stores.engine_traces import transcript
from stores.tables import compare_with_replay, tables_of
from stores.traces import Trace, Traced, listed

from perdure.kernel import KernelName
from perdure.stores import JsonlEventStore, MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore, RunFilter
from perdure.testing._store_suite import StoreClock
from perdure.testing._stories import START
from perdure.testing.postgres import shared_server
from perdure.testing.virtual_time import VirtualTimeLoop, run

SEEDS = int(os.environ.get("TRACES", "3"))
"""How many traces there are; `make traces` asks for more."""
STEPS = 300
ENGINE_STEPS = 90


def opened(name: str, folder: Path, clock: Callable[[], int], schema: str) -> FlowEventStore:
    match name:
        case "memory":
            return MemoryEventStore(clock)
        case "jsonl":
            return JsonlEventStore(folder / "runs", clock)
        case "sqlite":
            return SqliteEventStore(folder / "runs.db", clock, "NORMAL")
        case _:
            return PostgresEventStore(shared_server().url, clock, schema=schema)


NAMES = ("memory", "jsonl", "sqlite", "postgres")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_trace_leaves_all_stores_alike(seed: int, tmp_path: Path) -> None:
    kernel: KernelName = "pure" if seed % 2 else "rust"

    async def test() -> None:
        clock = StoreClock()
        schema = f"trace {seed}"
        stores = [Traced(name, opened(name, tmp_path, clock, schema)) for name in NAMES]
        trace = Trace(stores, clock, kernel, seed)
        for _ in range(STEPS // 10):
            await trace.run(10)
            await compare_tables(stores)
        for filter in (RunFilter(), RunFilter(terminal=False), RunFilter(held=True), RunFilter(status=("suspended",))):
            pages = [await listed(traced.store, filter, 2) for traced in stores]
            assert pages == [pages[0]] * len(stores)
        for traced in stores:
            await compare_with_replay(traced.store)
            await traced.store.close()
        again = [stores[0], *(Traced(name, opened(name, tmp_path, clock, schema)) for name in NAMES[1:])]
        for traced in again:
            await compare_with_replay(traced.store)
        derived = [(await tables_of(traced.store)).derived().shared() for traced in again]
        assert derived == [derived[0]] * len(derived)
        for traced in again:
            await traced.store.close()

    asyncio.run(test())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_trace_of_engine_calls_leaves_all_stores_alike(seed: int, tmp_path: Path) -> None:
    kernel: KernelName = "pure" if seed % 2 else "rust"

    def told(name: str) -> list[object]:
        async def test(loop: VirtualTimeLoop) -> list[object]:
            store = opened(name, tmp_path, loop.clock_ns, f"engine trace {seed}")
            try:
                return await transcript(store, loop, kernel, seed, ENGINE_STEPS)
            finally:
                await store.close()

        return run(test, START)

    expected = told("memory")
    for name in NAMES[1:]:
        for number, (ours, theirs) in enumerate(zip(expected, told(name), strict=True)):
            assert theirs == ours, f"{name} differs at {number}"


async def compare_tables(stores: list[Traced]) -> None:
    """Every table holds the same rows in every store."""
    first = await tables_of(stores[0].store)
    for traced in stores[1:]:
        assert (await tables_of(traced.store)).shared() == first, traced.name
