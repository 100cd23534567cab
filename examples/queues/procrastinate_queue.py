"""Procrastinate as the queue: jobs and runs live in one PostgreSQL database. Needs perdure[procrastinate,postgres].

The worker is a process that this program starts, with the argument `worker`; run as many as you like.

    python examples/queues/procrastinate_queue.py postgresql://user@host/database
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from datetime import timedelta

from procrastinate import App, PsycopgConnector

from perdure import Flow, FlowEngine, FlowScheduler, RuntimeCommand, WorkflowContext
from perdure.contrib.procrastinate import ProcrastinateDispatcher, register

flow = Flow()


@flow.step
def bake(cake: str) -> str:
    return f"{cake}, baked"


@flow.workflow("cake", version="1")
def cake(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("bake"):
        return ctx.schedule_step("bake", bake, ctx.input)
    if not ctx.wait_completed("cooled"):
        return ctx.wait_for("cooled", timedelta(milliseconds=200))
    return ctx.complete(f"{ctx.step_output('bake')} and cooled")


async def work(address: str) -> None:
    """What each worker process does."""
    app = App(connector=PsycopgConnector(conninfo=address))
    async with app.open_async(), FlowEngine(flow, address) as engine:
        register(app, engine)
        await app.run_worker_async(queues=["perdure"], concurrency=10)


async def send(address: str) -> None:
    app = App(connector=PsycopgConnector(conninfo=address))
    async with app.open_async(), FlowEngine(flow, address) as engine:
        await app.schema_manager.apply_schema_async()
        worker = subprocess.Popen([sys.executable, __file__, address, "worker"], stderr=subprocess.DEVNULL)
        for name in ("apple", "plum", "cherry"):
            await engine.submit(cake, f"{name} cake", run_id=name)
        scheduler = FlowScheduler(engine, ProcrastinateDispatcher(register(app, engine)))
        running = asyncio.create_task(scheduler.run_forever())
        while (await engine.run_summary()).completed_runs < 3:
            await asyncio.sleep(0.05)
        scheduler.stop()
        await running
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        for snapshot in await engine.list_snapshots():
            print(f"{snapshot.run_id}: {snapshot.output}")


def main(address: str, role: str = "sender") -> None:
    logging.basicConfig(level=logging.ERROR)  # Procrastinate warns of an App that is made in the main module
    asyncio.run(work(address) if role == "worker" else send(address))


if __name__ == "__main__":
    main(*sys.argv[1:])
