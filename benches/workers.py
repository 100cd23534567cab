"""How fast workers are: claims, runs from end to end with 1, 2 and 4 processes, and how soon a dead one is succeeded.

    python -m benches.workers                    # SQLite and PostgreSQL, a few minutes
    python -m benches.workers --store sqlite --smoke

Processes are forked from a parent that has opened nothing. A run has five steps that do nothing, so what is measured is what
perdure and the store take for them; SQLite syncs each group to disk, PostgreSQL does without, as its test server is set.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from perdure import Flow, FlowEngine, FlowWorker, RuntimeCommand, StepContext, WorkflowContext
from perdure.kernel import load
from perdure.stores import open_store
from perdure.testing.postgres import PostgresServer

__all__ = ["main"]

_STEPS: Final = 5
_TTL_NS: Final = 30_000_000_000
_EXPIRY_NS: Final = 300_000_000


@dataclass(frozen=True)
class Place:
    """Where a measurement keeps its runs."""

    name: str
    address: str

    def fresh(self, number: int) -> str:
        return f"{self.address}?schema=bench{number}" if self.name == "postgres" else f"{self.address}{number}.db"


def flow_of(ran: Callable[[], None] = lambda: None) -> Flow:
    flow = Flow()

    @flow.step
    async def step(context: StepContext) -> None:
        ran()

    @flow.workflow("steps")
    def steps(ctx: WorkflowContext) -> RuntimeCommand:
        for number in range(_STEPS):
            if not ctx.step_completed(f"s{number}"):
                return ctx.schedule_step(f"s{number}", step)
        return ctx.complete()

    return flow


def in_process(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Forks a process that does `work`; its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        asyncio.run(work())
        status = 0
    finally:
        os._exit(status)


def wait_for(pids: list[int]) -> None:
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"process {pid} failed")


async def submit(address: str, runs: int) -> None:
    store = open_store(address)
    async with FlowEngine(flow_of(), store) as engine:
        await asyncio.gather(*(engine.submit("steps") for _ in range(runs)))
    await store.close()


# throughput --------------------------------------------------------------------------------------------------------


def claims_a_second(address: str, processes: int, runs: int) -> float:
    """Batches of 16, taken until none is left."""

    async def claim() -> None:
        store = open_store(address)
        while await store.claim(f"owner {os.getpid()}", 16, ttl_ns=_TTL_NS):
            pass
        await store.close()

    return _timed(address, claim, processes, runs)


def runs_a_second(address: str, processes: int, runs: int) -> float:
    """From the start of the processes to the last run's end."""

    async def work() -> None:
        store = open_store(address)
        async with FlowEngine(flow_of(), store) as engine:
            await FlowWorker(engine).run_until_idle()
        await store.close()

    return _timed(address, work, processes, runs)


def _timed(address: str, work: Callable[[], Coroutine[Any, Any, None]], processes: int, runs: int) -> float:
    wait_for([in_process(lambda: submit(address, runs))])
    began = time.perf_counter()
    wait_for([in_process(work) for _ in range(processes)])
    return runs / (time.perf_counter() - began)


# succession --------------------------------------------------------------------------------------------------------


def after_a_death(address: str, times: int) -> list[float]:
    """Milliseconds from SIGKILL to the start of the recovered step in an idle worker of another process."""
    return _recorded(address, lambda write: _succeed_the_killed(address, write, times))


def after_an_expiry(address: str, times: int) -> list[float]:
    """Milliseconds from the expiry of a lease whose owner nobody can find dead to the start of the recovered step."""
    return _recorded(address, lambda write: _succeed_the_expired(address, write, times))


def _recorded(address: str, work: Callable[[int], Coroutine[Any, Any, None]]) -> list[float]:
    read, write = os.pipe()
    pid = in_process(lambda: work(write))
    os.close(write)
    with os.fdopen(read) as pipe:
        found = [float(line) for line in pipe]
    wait_for([pid])
    return found


async def _succeed_the_killed(address: str, write: int, times: int) -> None:
    for number in range(times):
        run_id, begun = f"dead-{number}", os.pipe()
        victim = in_process(lambda run_id=run_id, begun=begun: _hold(address, run_id, begun[1]))  # type: ignore[misc]  # binds the turn
        await asyncio.to_thread(os.read, begun[0], 1)
        killed: list[float] = []
        async with _idle_worker(address, run_id, write, killed):
            await asyncio.sleep(0.3)
            os.kill(victim, signal.SIGKILL)
            killed.append(time.perf_counter())
            await asyncio.to_thread(os.waitpid, victim, 0)
            await _until_ended(address, number + 1)


async def _hold(address: str, run_id: str, begun: int) -> None:
    """A process in the middle of the run's first step."""
    flow = Flow()

    @flow.step
    async def step() -> None:
        os.write(begun, b".")
        await asyncio.sleep(3600)

    @flow.workflow("steps")
    def steps(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("s0", step)

    async with FlowEngine(flow, open_store(address)) as engine:
        await engine.start("steps", run_id=run_id)


async def _succeed_the_expired(address: str, write: int, times: int) -> None:
    for number in range(times):
        run_id = f"expired-{number}"
        store = open_store(address)
        async with FlowEngine(flow_of(), store) as engine:
            await engine.submit("steps", run_id=run_id)
        (claimed,) = await store.claim("somebody", 1, ttl_ns=_EXPIRY_NS)
        since = time.perf_counter() + (claimed.now + _EXPIRY_NS - store.clock()) / 1e9
        async with _idle_worker(address, run_id, write, [since]):
            await _until_ended(address, number + 1)
        await store.close()


class _idle_worker:  # noqa: N801 - read as a block
    """A worker of this process that tells when its first step begins, in ms since the moment it is given."""

    def __init__(self, address: str, run_id: str, write: int, since: list[float]) -> None:
        self._store = open_store(address)
        self._engine = FlowEngine(flow_of(self._ran), self._store)
        self._worker = FlowWorker(self._engine)
        self._write = write
        self._since = since
        self._told = False

    def _ran(self) -> None:
        if not self._told:
            self._told = True
            os.write(self._write, f"{(time.perf_counter() - self._since[0]) * 1000}\n".encode())

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._worker.run_forever(signals=False))

    async def __aexit__(self, *_: object) -> None:
        await self._worker.drain()
        await self._task
        await self._engine.close()
        await self._store.close()


async def _until_ended(address: str, count: int) -> None:
    store = open_store(address)
    while (await store.summary()).terminal_runs < count:  # noqa: ASYNC110 - other processes end them
        await asyncio.sleep(0.02)
    await store.close()


# the table ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.workers")
    parser.add_argument("--store", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--smoke", action="store_true", help="few runs: does it work?")
    options = parser.parse_args(arguments)
    load("rust")
    logging.getLogger("perdure").setLevel(logging.ERROR)  # that processes die is the point here
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-bench-"))
        for name in options.store or ("sqlite", "postgres"):
            if name == "postgres":
                import_module("perdure.stores.postgres")
                place = Place(name, stack.enter_context(PostgresServer()).url)
            else:
                place = Place(name, str(Path(folder) / "runs"))
            _measure(place, 40 if options.smoke else options.runs, 2 if options.smoke else 15)
    return 0


def _measure(place: Place, runs: int, times: int) -> None:
    number = 0
    for processes in (1, 2, 4):
        number += 2
        claims = claims_a_second(place.fresh(number), processes, runs * 4)
        ended = runs_a_second(place.fresh(number + 1), processes, runs)
        _tell(
            f"{place.name}, {processes} processes: {claims:,.0f} claims/s, {ended:,.0f} runs/s, {ended * _STEPS:,.0f} steps/s"
        )
    for what, measure in (("death", after_a_death), ("expiry", after_an_expiry)):
        number += 2
        found = sorted(measure(place.fresh(number), times))
        _tell(
            f"{place.name}, from {what} to the recovered step: median {statistics.median(found):.1f} ms, most {found[-1]:.1f} ms"
        )


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
