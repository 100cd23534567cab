"""`perdure worker` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import perdure
from perdure.stores import PostgresEventStore
from perdure.stores.base import FlowEventStore

__all__ = ["MODULE", "address_of", "child", "logged"]

MODULE = """
import time, sys
from pathlib import Path
from perdure import Flow, RuntimeCommand, StepContext, WorkflowContext

flow = Flow()

@flow.step
def slow(context: StepContext) -> str:
    print("working", flush=True)
    while not Path("go").exists():
        time.sleep(0.01)
    return "by the child"

@flow.workflow("flow")
def workflow(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete(ctx.step_output("s")) if ctx.step_completed("s") else ctx.schedule_step("s", slow)
"""


def address_of(store: FlowEventStore) -> str:
    if isinstance(store, PostgresEventStore):
        return f"{store._database.address}?schema={store._database.schema.replace(' ', '%20')}"
    return str(getattr(store, "_file").path)  # noqa: B009 - the protocol does not have it


@contextmanager
def child(store: FlowEventStore, folder: Path, *options: str, module: str = MODULE) -> Iterator[subprocess.Popen[str]]:
    """`perdure worker` in a process of its own, in the middle of its first step."""
    (folder / "shop.py").write_text(module)
    environment = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    command = [sys.executable, "-m", "perdure", "worker", "shop:flow", "--store", address_of(store), *options]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=folder
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n", (folder / "log").read_text()
            yield process
        finally:
            process.kill()


async def logged(folder: Path, text: str) -> bool:
    """Whether a child there has said so."""
    return text in (folder / "log").read_text()
