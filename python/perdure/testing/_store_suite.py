"""What the parts of the store suite share: how a store and its clock are made, and runs written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import ClassVar, TypeVar

from perdure.errors import FlowError
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, KernelName, Run, load
from perdure.stores.base import Committed, FlowEventStore
from perdure.testing._stories import START, Story

__all__ = ["StoreClock", "StoreSuite", "on_a_store", "raised", "told"]

E = TypeVar("E", bound=Exception)
S = TypeVar("S", bound="StoreSuite")


class StoreClock:
    """A clock that stands still until a test moves it; `ns` since 1970."""

    def __init__(self) -> None:
        self.ns = START

    def __call__(self) -> int:
        return self.ns


class StoreSuite:
    """How stores are made, for the tests of its subclasses."""

    kernel: ClassVar[KernelName] = "rust"
    random_traces: ClassVar[int] = 8
    """How many random traces the index, and the leases, are compared on."""
    run_ids: ClassVar[tuple[str, ...]] = ("A", "a", "b-2", "b", "c_")
    """The runs of random traces. A store that lets ids that differ in case exclude each other is given others."""

    @cached_property
    def clock(self) -> StoreClock:
        """What the stores of this test must take for their clock (R45)."""
        return StoreClock()

    def make_store(self) -> FlowEventStore:
        """A store with nothing in it, that reads the time from `self.clock`."""
        raise NotImplementedError("say how an empty store is made")

    def open_again(self, store: FlowEventStore) -> FlowEventStore:
        """A store with what `store`, now closed, held. The default is for a store that goes on after `close`."""
        return store

    def story(self, run_id: str) -> Story:
        """A run without events yet."""
        return Story(self._kernel, run_id)

    @property
    def _kernel(self) -> Kernel:
        return load(self.kernel)

    async def project(self, store: FlowEventStore, run_id: str) -> Run:
        """The run as a replay of its stored history."""
        return self._kernel.project(run_id, await store.history(run_id), DEFAULT_MAX_EVENT_BYTES)


def on_a_store(test: Callable[[S, FlowEventStore], Awaitable[None]]) -> Callable[[S], None]:
    """Makes a test that any pytest runs out of a coroutine that is given a fresh store."""

    async def body(suite: S) -> None:
        store = suite.make_store()
        try:
            await test(suite, store)
        finally:
            await store.close()

    def run(suite: S) -> None:
        asyncio.run(body(suite))

    # Not `functools.wraps`: pytest would follow it to the coroutine and take `store` for a fixture.
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def raised(kind: type[E], call: Awaitable[object]) -> E:
    """The error of this kind that `call` raises."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def told(answers: Sequence[Committed | FlowError]) -> list[tuple[str, tuple[object, ...]]]:
    """Answers as values that compare: class and fields."""
    return [
        (type(answer).__name__, answer.args if isinstance(answer, FlowError) else (answer.last_sequence,))
        for answer in answers
    ]
