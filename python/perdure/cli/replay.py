"""`perdure replay`: recorded runs against the code that is to be deployed (R37, R38)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perdure.cli.shared import (
    Json,
    Prefix,
    RunIds,
    Statuses,
    StoreUrl,
    Version,
    Workflow,
    counted,
    opened,
    perform,
    plain,
    say,
    selection,
    tell_json,
    tell_table,
)
from perdure.cli.target import resolve_codec, resolve_flow
from perdure.codec import PayloadCodec
from perdure.errors import FlowError
from perdure.exchange import Stored, folder_histories, stored_histories
from perdure.flow import FlowRuntime
from perdure.replaying import Replayed, replay_history
from perdure.retention import RunSelection
from perdure.told import told

__all__ = ["register"]

_OPEN = ["pending", "running", "suspended", "cancelling"]


class _Misfit(NamedTuple):
    run_id: str
    error: FlowError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("replay")(replay)


def replay(
    target: Annotated[str, typer.Argument(metavar="MODULE:FLOW", help="The code to try, such as shop.orders:flow.")],
    store: StoreUrl = "",
    histories: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Exported histories instead of a store's.", exists=True)
    ] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Of a store, also runs that have ended.")] = False,
    status: Statuses = None,
    workflow: Workflow = None,
    version: Version = None,
    run_id: RunIds = None,
    prefix: Prefix = None,
    codec: Annotated[
        str | None, typer.Option(metavar="MODULE:CODEC", help="What your payloads are stored with, if anything.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show what is recorded beside what is asked for now.")
    ] = False,
    json: Json = False,
) -> None:
    """Replay recorded runs with this code before it is deployed, and say which of them it would not carry on.

    No step is run and nothing is written. Runs that have ended must end alike, with the same output or error.
    Exit codes: 0 all fit, 1 some do not, 2 wrong usage.
    """
    if histories is not None and (ended or any((status, workflow, version, run_id, prefix))):
        raise typer.BadParameter(
            "all runs of a folder are replayed; choose among those of a store", param_hint="--histories"
        )
    if histories is None and not store:
        raise typer.BadParameter("say where the runs are: --store or --histories", param_hint="--store")
    if not (status or run_id or ended):
        status = _OPEN
    wanted = selection(status, workflow, version, run_id, prefix)
    decoder = None if codec is None else resolve_codec(codec)
    fits, misfits = perform(_replay(resolve_flow(target), store, histories, wanted, decoder))
    if json:
        found = [{"run_id": run_id, "code": error.code, "error": str(error)} for run_id, error in misfits]
        tell_json({"replayed": len(fits) + len(misfits), "events": sum(fit.events for fit in fits), "misfits": found})
    else:
        kinds = Counter((fit.workflow, fit.version) for fit in fits)
        if fits or not misfits:
            tell_table(
                ("workflow", "version", "runs that fit"), [(*kind, count) for kind, count in sorted(kinds.items())]
            )
        if misfits and details:
            _tell_details(misfits)
        elif misfits:
            tell_table(("run", "what does not fit"), [(run_id, told(error)) for run_id, error in misfits])
    if misfits:
        say(f"{len(misfits)} of {len(fits) + len(misfits)} runs do not fit this code")
        raise typer.Exit(1)


def _tell_details(misfits: list[_Misfit]) -> None:
    for run_id, error in misfits:
        first, *rest = str(error).splitlines()
        place = "" if repr(run_id) in first else f"run {run_id!r}: "
        for line in (place + first, *rest):
            sys.stdout.write(plain(line) + "\n")


async def _replay(
    runtime: FlowRuntime, store: str, folder: Path | None, wanted: RunSelection, codec: PayloadCodec | None
) -> tuple[list[Replayed], list[_Misfit]]:
    fits: list[Replayed] = []
    misfits: list[_Misfit] = []
    async with _histories(store, folder, wanted) as (found, total):
        with counted("replaying", total) as more:
            async for stored in found:
                try:
                    fits.append(replay_history(runtime, stored.lines, codec=codec))
                except FlowError as error:
                    misfits.append(_Misfit(stored.run_id, error))
                more(1)
    return fits, misfits


@asynccontextmanager
async def _histories(
    address: str, folder: Path | None, wanted: RunSelection
) -> AsyncIterator[tuple[AsyncIterator[Stored], int]]:
    if folder is not None:
        found = list(folder_histories(folder))
        yield _each(found), len(found)
        return
    async with opened(address) as store:
        yield stored_histories(store, wanted), (await store.summary()).total_runs


async def _each(found: list[Stored]) -> AsyncIterator[Stored]:
    for stored in found:
        yield stored
