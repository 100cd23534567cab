"""Celery as the queue: perdure's scheduler sends tasks, Celery workers do them. Needs perdure[celery].

The broker here is a folder, and the worker a process that this program starts; in earnest the broker is Redis or RabbitMQ,
and workers run as they do for your other tasks:

    celery -A celery_queue worker

    python examples/queues/celery_queue.py
"""

# pyright: basic
# Celery ships no types.

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from celery import Celery

from perdure import BlockingFlowEngine, Flow, FlowEngine, FlowScheduler, RuntimeCommand, WorkflowContext
from perdure.contrib.celery import CeleryDispatcher, register

# The worker process finds the same folder in its environment.
FOLDER = os.environ.setdefault("PARCELS_FOLDER", "") or tempfile.mkdtemp()
STORE = f"sqlite:///{FOLDER}/runs.db"

flow = Flow()


@flow.step
def weigh(parcel: str) -> int:
    return len(parcel)


@flow.workflow("parcel", version="1")
def parcel(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("weigh"):
        return ctx.schedule_step("weigh", weigh, ctx.input)
    if not ctx.wait_completed("collected"):
        return ctx.wait_for("collected", timedelta(milliseconds=200))
    return ctx.complete(f"{ctx.step_output('weigh')} kg, collected")


app = Celery("parcels", broker="filesystem://localhost")
app.conf.update(
    broker_transport_options={
        "data_folder_in": FOLDER,
        "data_folder_out": FOLDER,
        "control_folder": f"{FOLDER}/control",
    },
    broker_connection_retry_on_startup=True,
)
tasks = register(app, lambda: BlockingFlowEngine(flow, STORE))


async def send() -> None:
    async with FlowEngine(flow, STORE) as engine:
        for name in ("book", "teapot", "umbrella"):
            await engine.submit(parcel, name, run_id=name)
        scheduler = FlowScheduler(engine, CeleryDispatcher(tasks))
        running = asyncio.create_task(scheduler.run_forever())
        while (await engine.run_summary()).completed_runs < 3:
            await asyncio.sleep(0.05)
        scheduler.stop()
        await running
        for snapshot in await engine.list_snapshots():
            print(f"{snapshot.run_id}: {snapshot.output}")


def main() -> None:
    command = [
        sys.executable,
        "-m",
        "celery",
        "--quiet",
        "-A",
        "celery_queue",
        "worker",
        "--pool=solo",
        "--loglevel=ERROR",
    ]
    environment = os.environ | {"PARCELS_FOLDER": FOLDER}
    worker = subprocess.Popen(
        [*command, "--without-gossip", "--without-mingle"],
        cwd=Path(__file__).parent,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(send())
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
