"""`perdure worker`: one process, or several with a parent, that carry on the runs of a store."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from perdure.builds import RuntimeBuildCompatibility
from perdure.cli.processes import Processes
from perdure.cli.shared import StoreUrl, named, opened, perform
from perdure.cli.target import resolve_flow
from perdure.engine import FlowEngine
from perdure.errors import InvalidRuntimeBuildId
from perdure.flow import FlowRuntime
from perdure.stores.address import parse_address
from perdure.worker import FlowWorker

__all__ = ["register"]

_LOG_LINE: Final = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
_SIGNALLED: Final = 128  # what a shell adds to the number of a signal


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("worker")(worker)


@dataclass(frozen=True)
class _Settings:
    store: str
    concurrency: int
    claim_batch: int
    builds: RuntimeBuildCompatibility | None
    lease_ttl: timedelta
    drain_timeout: timedelta
    until_idle: bool


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:FLOW", help="Your flow, such as shop.orders:flow.")],
    store: StoreUrl,
    processes: Annotated[int, typer.Option(min=1, help="How many worker processes.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs that one process drives at once.")] = 64,
    claim_batch: Annotated[int, typer.Option(min=1, help="Runs claimed in one transaction.")] = 16,
    build: Annotated[str | None, typer.Option(metavar="ID", help="The build of this code.")] = None,
    compatible: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Another build whose runs it can carry on; may be repeated.")
    ] = None,
    accept_unpinned: Annotated[
        bool, typer.Option("--accept-unpinned", help="With --build: also take runs that are pinned to no build.")
    ] = False,
    lease_ttl: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long a lease lives.")] = 30.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long running steps may take after a signal.")
    ] = 30.0,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no run can be carried on now.")] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Carry on the runs of a store: claim what is due, drive it, and leave to others what this code does not know.

    SIGTERM or Ctrl-C lets running steps finish and gives all leases back; a second one ends it at once. Exit codes: 0 drained,
    1 the store cannot be worked with, 2 wrong usage, 128 + the signal when told twice.
    """
    settings = _Settings(
        store,
        concurrency,
        claim_batch,
        _builds(build, compatible or [], accept_unpinned),
        timedelta(seconds=lease_ttl),
        timedelta(seconds=drain_timeout),
        until_idle,
    )
    runtime = resolve_flow(target)
    logging.basicConfig(level=logging.INFO, format=_LOG_LINE, stream=sys.stderr)
    with named(store):
        _check_store(store, processes)
        if processes == 1:
            status = perform(_work(runtime, settings, parent))
        else:
            status = perform(Processes(_child_command(), processes, store, drain_timeout).run())
    if status > _SIGNALLED:
        _leave_at_once(status)
    raise typer.Exit(status)


def _builds(build: str | None, compatible: list[str], accept_unpinned: bool) -> RuntimeBuildCompatibility | None:
    if build is None:
        if compatible or accept_unpinned:
            raise typer.BadParameter("say which build this code is", param_hint="--build")
        return None
    try:
        return RuntimeBuildCompatibility(build, compatible, accept_unpinned)
    except InvalidRuntimeBuildId as error:
        raise typer.BadParameter(str(error), param_hint="--build or --compatible") from None


def _check_store(store: str, processes: int) -> None:
    address = parse_address(store)
    if address.kind == "memory" or address.text.endswith(":memory:"):
        raise typer.BadParameter("a store in memory is gone with its process", param_hint="--store")
    if address.kind == "jsonl" and processes > 1:
        raise typer.BadParameter("a folder of JSONL files belongs to one process", param_hint="--processes")


def _child_command() -> list[str]:
    """This very command for one process; the last of an option counts."""
    return [sys.executable, "-m", "perdure", *sys.argv[1:], "--processes", "1"]


async def _work(runtime: FlowRuntime, settings: _Settings, parent: int | None) -> int:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(settings.store, make=True))
        engine = FlowEngine(runtime, store, builds=settings.builds, lease_ttl=settings.lease_ttl)
        worker = FlowWorker(
            engine,
            concurrency=settings.concurrency,
            claim_batch=settings.claim_batch,
            drain_timeout=settings.drain_timeout,
        )
        if parent is not None:
            _listen_to(parent, engine.owner, worker)
        await (worker.run_until_idle() if settings.until_idle else worker.run_forever())
        if len(worker.signals) > 1:  # told twice: what resists is not waited for
            return _SIGNALLED + worker.signals[-1]
        await engine.close()
    return 0


def _listen_to(descriptor: int, owner: str, worker: FlowWorker) -> None:
    """Tells the parent who this is, so that it can end the leases of a child that died; and drains when the parent is
    gone."""
    connection = socket.socket(fileno=descriptor)
    connection.sendall(owner.encode() + b"\n")
    connection.setblocking(False)
    loop = asyncio.get_running_loop()

    def heard() -> None:
        if not connection.recv(1):
            loop.remove_reader(connection)
            connection.close()
            worker.stop()

    loop.add_reader(connection, heard)


def _leave_at_once(status: int) -> None:
    """Threads of steps, and whatever else user code began, are not waited for."""
    sys.stderr.flush()
    sys.stdout.flush()
    if status == _SIGNALLED + signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os._exit(status)
