"""`perdure worker`: one process, or several with a parent, that carry on the runs of a store."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from typing import Annotated, Final

import typer

from perdure.builds import RuntimeBuildCompatibility
from perdure.cli.crew import SIGNALLED, Crew, Settings, leave_at_once
from perdure.cli.processes import Processes
from perdure.cli.shared import YEAR, StoreUrl, named, perform
from perdure.cli.target import resolve_codec, resolve_flow
from perdure.errors import InvalidRuntimeBuildId
from perdure.stores.address import parse_address

__all__ = ["register"]

_LOG_LINE: Final = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("worker")(worker)


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
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also do the tasks of this queue of the store; may be repeated."),
    ] = None,
    codec: Annotated[
        str | None, typer.Option(metavar="MODULE:CODEC", help="What your payloads are stored with, if anything.")
    ] = None,
    lease_ttl: Annotated[
        float, typer.Option(min=0.1, max=YEAR, metavar="SECONDS", help="How long a lease lives.")
    ] = 30.0,
    drain_timeout: Annotated[
        float,
        typer.Option(min=0.0, max=YEAR, metavar="SECONDS", help="How long running steps may take after a signal."),
    ] = 30.0,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no run can be carried on now.")] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Carry on the runs of a store: claim what is due, drive it, and leave to others what this code does not know.

    Any number of workers may share a store; with --processes one command is as many of them.

    SIGTERM or Ctrl-C lets running steps finish and gives all leases back; a second one ends it at once. Exit codes: 0 drained,
    1 the store cannot be worked with, 2 wrong usage, 128 + the signal when told twice.
    """
    settings = Settings(
        store,
        concurrency,
        claim_batch,
        _builds(build, compatible or [], accept_unpinned),
        None if codec is None else resolve_codec(codec),
        queue or [],
        timedelta(seconds=lease_ttl),
        timedelta(seconds=drain_timeout),
        until_idle,
    )
    runtime = resolve_flow(target)
    logging.basicConfig(level=logging.INFO, format=_LOG_LINE, stream=sys.stderr)
    for name in ("perdure", "perdure.workflow"):  # a dictConfig of the flow's module disables what it does not know
        logging.getLogger(name).disabled = False
    with named(store):
        _check_store(store, processes)
        if processes == 1:
            crew = Crew(runtime, settings)
            try:
                status = perform(crew.work(parent))
            finally:
                crew.ended()
        else:
            status = perform(Processes(_child_command(), processes, store, drain_timeout).run())
    if status > SIGNALLED:
        leave_at_once(status)
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
    given = [argument for argument in sys.argv[1:] if argument != "--"]  # behind which there are no options
    return [sys.executable, "-m", "perdure", *given, "--processes", "1"]
