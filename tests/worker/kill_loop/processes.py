"""What runs in the forked processes: a worker with a wrong clock, and the client that submits, answers and cancels."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure import FlowEngine, FlowWorker
from perdure.errors import EventConflict, FlowError, HookTokenNotFound, LeaseLost
from perdure.stores import SqliteEventStore, open_store
from perdure.stores.base import Append, Claimed, Committed, FlowEventStore, RunFilter
from worker.kill_loop.ledger import Ledger, true_ns
from worker.kill_loop.program import TOKEN, kind_of, name_of, program

__all__ = ["Plan", "fork", "submit_and_answer", "work"]


@dataclass(frozen=True)
class Plan:
    """What all processes are told."""

    store: str
    folder: Path
    runs: int
    seconds: float
    lease_ttl: float
    kernel: Any = "rust"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger")

    def open(self) -> FlowEventStore:
        if self.store == "sqlite":
            return SqliteEventStore(self.folder / "runs.db", true_ns)
        return open_store(self.store)


def fork(body: Callable[[], None], log: Path) -> int:
    """Runs `body` in a forked process, which says on `log` what went wrong; gives its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, 2)
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must end here, whatever it raised
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# a worker ------------------------------------------------------------------------------------------------------------


class RecordingStore:
    """Writes down what the store grants: claims, renewals, commits, and, before they are made, releases."""

    def __init__(self, inner: FlowEventStore, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def elsewhere(self) -> Any:
        other = self._inner.elsewhere()
        return None if other is None else RecordingStore(other, self._ledger)

    async def claim(self, owner: str, k: int, **rest: Any) -> list[Claimed]:
        claimed = await self._inner.claim(owner, k, **rest)
        for run in claimed:
            self._ledger.note("claimed", run.run_id, run.epoch, run.last_sequence, run.now)
        return claimed

    async def renew(self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int) -> Any:
        asked_at = true_ns()
        answers = await self._inner.renew(owner, pairs, ttl_ns=ttl_ns)
        for (run_id, epoch), answer in zip(pairs, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self._ledger.note("lost", run_id, epoch)
            else:
                self._ledger.note("renewed", run_id, epoch, asked_at)
        return answers

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        for append in appends:
            lease, row = append.lease, append.batch.row
            if lease is not None and lease.epoch is not None and (lease.after != "keep" or row.terminal):
                self._ledger.note("releases", append.batch.run_id, lease.epoch)
        answers = await self._inner.commit(appends)
        for append, answer in zip(appends, answers, strict=True):
            run_id, epoch = append.batch.run_id, None if append.lease is None else append.lease.epoch
            if isinstance(answer, Committed):
                self._ledger.note("committed", run_id, epoch or answer.epoch, answer.last_sequence)
            else:
                self._ledger.note("refused", run_id, epoch, answer.code)
        return answers


def work(plan: Plan, skew_seconds: float) -> None:
    """A worker until it is told to drain. What it would read of its own clock is wrong; the store's is not."""
    skew_ns = int(skew_seconds * 1e9)
    time.time_ns = lambda: true_ns() + skew_ns
    time.time = lambda: (true_ns() + skew_ns) / 1e9
    logging.basicConfig(level=logging.ERROR, format="%(process)d %(levelname)s %(message)s")
    asyncio.run(_work(plan))


async def _work(plan: Plan) -> None:
    ledger = plan.ledger
    inner = plan.open()
    store: Any = RecordingStore(inner, ledger)
    flow = program(lambda context: ledger.note("ran", context.run_id, context.step_id, context.attempt))
    ttl = timedelta(seconds=plan.lease_ttl)
    async with FlowEngine(flow, store, kernel=plan.kernel, lease_ttl=ttl, record_tracebacks=False) as engine:
        worker = FlowWorker(engine, concurrency=16, claim_batch=8, drain_timeout=timedelta(seconds=20))
        # By the time this is called the worker handles signals: its first line has run.
        asyncio.get_running_loop().call_soon(ledger.note, "began", "")
        await worker.run_forever()
    await inner.close()


# the client ----------------------------------------------------------------------------------------------------------


def submit_and_answer(plan: Plan) -> None:
    """Submits runs over two thirds of the time, answers hooks, cancels what is to be cancelled; ends when all have ended."""
    asyncio.run(_submit_and_answer(plan))


async def _submit_and_answer(plan: Plan) -> None:
    store = plan.open()
    began = time.monotonic()
    async with FlowEngine(program(lambda context: None), store) as engine:
        submitted, ended = 0, 0
        while ended < plan.runs:
            share = (time.monotonic() - began) / (plan.seconds * 2 / 3)
            due = range(submitted, min(plan.runs, int(plan.runs * share) + 1))
            names = [name_of(number) for number in due]
            await asyncio.gather(*(engine.submit(kind_of(run_id), run_id=run_id) for run_id in names))
            submitted += len(names)
            await _answer(engine, store)
            ended = (await store.summary()).terminal_runs
            await asyncio.sleep(0.1)
    await store.close()


async def _answer(engine: FlowEngine, store: FlowEventStore) -> None:
    asked: Collection[Any] = await store.list_active_hooks()
    suspended = {run.run_id for run in (await store.runs(RunFilter(status=("cancelling",)), limit=10_000)).runs}
    for hook in asked:
        with suppress(HookTokenNotFound, EventConflict):
            if hook.hook_id == "answer":
                await engine.resume_hook_by_token(TOKEN.format(hook.run_id), {"from": hook.run_id}, drive=False)
            elif hook.run_id not in suspended:
                await engine.request_cancellation(hook.run_id, "by the client", drive=False)
