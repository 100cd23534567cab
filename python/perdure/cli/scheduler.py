"""`perdure scheduler`: sends a task for every run of a store that has something to do."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from perdure.cli.shared import YEAR, Json, StoreUrl, named, opened, perform, tell_json, tell_table
from perdure.cli.target import resolve
from perdure.engine import FlowEngine
from perdure.errors import InvalidRuntimeBuildId, InvalidWorkerConfiguration
from perdure.flow import Flow
from perdure.queues import DurableTaskQueue
from perdure.routing import RuntimeBuildTaskRouter
from perdure.scheduler import DueWork, FlowScheduler
from perdure.stores.base import FlowEventStore
from perdure.worker.signals import signals_handled

__all__ = ["register"]

_LOG_LINE: Final = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("scheduler")(scheduler)


def scheduler(
    store: StoreUrl,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:DISPATCHER]",
            help="Your dispatcher, such as shop.queues:celery; without it tasks go to --queue, in the store itself.",
        ),
    ] = None,
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue for runs that no --route is for.")] = "default",
    route: Annotated[
        list[str] | None,
        typer.Option(metavar="BUILD=QUEUE", help="The queue for runs pinned to a build; may be repeated."),
    ] = None,
    max_pending: Annotated[int | None, typer.Option(min=1, help="How many tasks a queue may hold.")] = None,
    redispatch_after: Annotated[
        float,
        typer.Option(
            min=0.001, max=YEAR, metavar="SECONDS", help="When a task sent to a dispatcher of yours counts as lost."
        ),
    ] = 60.0,
    interval: Annotated[float, typer.Option(min=0.001, max=YEAR, metavar="SECONDS", help="The longest sleep.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, say what it did, and end.")] = False,
    json: Json = False,
) -> None:
    """Send a task for every run that has something to do, whenever it has; any number of schedulers may run.

    SIGTERM or Ctrl-C ends it at once: nothing is lost by it. Exit codes: 0 ended, 1 the store cannot be worked with or a build
    has no route, 2 wrong usage.
    """
    given = _dispatcher(target)
    logging.basicConfig(level=logging.INFO, format=_LOG_LINE, stream=sys.stderr)

    async def work() -> DueWork | None:
        async with opened(store, make=True) as opened_store, FlowEngine(Flow(), opened_store) as engine:
            dispatcher = given if given is not None else _queues(opened_store, queue, route or [], max_pending)
            found = FlowScheduler(
                engine,
                dispatcher,
                redispatch_after=timedelta(seconds=redispatch_after),
                interval=timedelta(seconds=interval),
            )
            if once:
                return await found.enqueue_due_work()
            with signals_handled(lambda number: found.stop()):
                await found.run_forever()
            return None

    with named(store):
        work_done = perform(work())
    if work_done is not None:
        _tell(work_done, json)


def _dispatcher(target: str | None) -> object | None:
    if target is None:
        return None
    _, found = resolve(target, "dispatcher", "shop.queues:dispatcher")
    if isinstance(found, Flow):
        return None  # its tasks go to the queue, as those of any other flow
    if not callable(getattr(found, "dispatch", None)):
        raise typer.BadParameter(
            f"{target!r} is of type {type(found).__name__}; a dispatcher has an async method dispatch(task)",
            param_hint="TARGET",
        )
    return found  # type: ignore[no-any-return]  # whatever has a dispatch


def _queues(store: FlowEventStore, queue: str, routes: Sequence[str], max_pending: int | None) -> object:
    try:
        unpinned = DurableTaskQueue(store, queue, max_pending=max_pending)
        if not routes:
            return unpinned
        pairs: list[tuple[str, Any]] = []
        for text in routes:
            build, equals, name = text.rpartition("=")
            if not equals:
                raise typer.BadParameter(f"{text!r} names no queue; write BUILD=QUEUE", param_hint="--route")
            pairs.append((build, DurableTaskQueue(store, name, max_pending=max_pending)))
        return RuntimeBuildTaskRouter(pairs, unpinned)
    except (InvalidWorkerConfiguration, InvalidRuntimeBuildId) as error:
        raise typer.BadParameter(str(error), param_hint="--queue or --route") from None


def _tell(work: DueWork, json: bool) -> None:
    found = asdict(work)
    with suppress(KeyError):
        del found["next_at"]
    if json:
        tell_json(found)
    else:
        tell_table(("what", "how many"), [(name.replace("_", " "), value) for name, value in found.items()])
