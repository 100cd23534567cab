"""A scheduler, a queue and a worker: runs that wait are carried on by whoever takes their tasks.

The scheduler finds every run that has something to do, sends one task for it, and sleeps until the next one comes due. The
queue lives in the same database; its tasks are leased, so what a worker that died had taken comes back. Here all three share
one process and one file; in earnest they are processes of their own, as many as you like (`perdure scheduler`, and your
program with a `TaskWorker`). Without a queue, `perdure worker` takes runs from the store by itself.

    python examples/scheduler_worker.py [FILE]
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from tempfile import TemporaryDirectory

from perdure import (
    DurableTaskQueue,
    Flow,
    FlowEngine,
    FlowScheduler,
    ResumeHook,
    RuntimeCommand,
    SqliteEventStore,
    TaskWorker,
    WorkflowContext,
)

flow = Flow()

COOLING = timedelta(milliseconds=200)


@flow.step
def brew(cup: str) -> str:
    return f"{cup} of tea"


@flow.workflow("tea", version="1")
def tea(ctx: WorkflowContext) -> RuntimeCommand:
    """Brews, lets it cool, and waits to be told whether it was good."""
    if not ctx.step_completed("brew"):
        return ctx.schedule_step("brew", brew, ctx.input)
    if not ctx.wait_completed("cool"):
        return ctx.wait_for("cool", COOLING)
    if ctx.hook_payload("verdict") is None:
        return ctx.create_hook("verdict", f"token-of-{ctx.run_id}")
    return ctx.complete(f"{ctx.step_output('brew')}: {ctx.hook_payload('verdict')}")


async def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder:
        store = SqliteEventStore(file or f"{folder}/runs.db")
        queue = DurableTaskQueue(store, "kitchen")
        async with FlowEngine(flow, store) as engine:
            for number in (1, 2, 3):
                await engine.submit(tea, f"cup {number}", run_id=f"tea-{number}")
            scheduler, worker = FlowScheduler(engine, queue), TaskWorker(engine, queue)
            running = asyncio.gather(scheduler.run_forever(), worker.run_forever())
            while (await engine.run_summary()).active_hooks + (await engine.run_summary()).completed_runs < 3:
                await asyncio.sleep(0.02)
            for number in (1, 2, 3):
                await queue.enqueue(ResumeHook(f"tea-{number}", "verdict", "good"))
            await queue.enqueue(ResumeHook("tea-3", "verdict", "cold"))
            while (await engine.run_summary()).completed_runs < 3 or await queue.dead_letter_len() == 0:
                await asyncio.sleep(0.02)
            scheduler.stop()
            worker.stop()
            await running
            for snapshot in await engine.list_snapshots():
                print(f"{snapshot.run_id}: {snapshot.output}")
            for dead in await queue.dead_lettered_tasks():
                print(f"set aside: {dead.reason}")
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
