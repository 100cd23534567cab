"""The memory store under the shipped suite, on both kernels."""

from __future__ import annotations

import asyncio

from perdure.stores import MemoryEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing import StoreContract


class OnMemory(StoreContract):
    def make_store(self) -> FlowEventStore:
        return MemoryEventStore(self.clock)


class TestOnRust(OnMemory):
    kernel = "rust"


class TestOnPure(OnMemory):
    kernel = "pure"


def test_the_clock_is_the_one_given() -> None:
    assert MemoryEventStore(clock=lambda: 42).clock() == 42


def test_a_memory_store_goes_on_after_close() -> None:
    store = MemoryEventStore()
    asyncio.run(store.close())
    assert asyncio.run(store.run_ids()) == []
