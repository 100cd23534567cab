"""`perdure prune` and `perdure history-hold`: what goes, and what is kept from going (R51)."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Annotated, Any, Final

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
    say,
    selection,
    tell_json,
    tell_table,
)
from perdure.instant import format_instant, parse_instant
from perdure.retention import HistoryHold, PrunedRuns, PruneProgress, PruneReport
from perdure.stores.base import FlowEventStore

__all__ = ["register"]

_PAGE: Final = 500
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MEANINGS: Final = {
    "deleted": "gone for good, or would be",
    "held": "kept by a retention hold",
    "referenced": "linked to a run that stays, is missing or is not meant",
    "non_terminal": "still open",
    "too_recent": "ended after the cutoff",
    "changed": "changed meanwhile; prune again",
}

Age = Annotated[str | None, typer.Option("--older-than", metavar="AGE", help="Such as 90d, 12h or 30m.")]
Before = Annotated[
    str | None, typer.Option("--before", metavar="TIME", help="Such as 2026-01-31T00:00:00Z, or a date in UTC.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("prune")(prune)
    holds = typer.Typer(no_args_is_help=True, help="Keep histories from being pruned (not to be taken for run holds).")
    holds.command("add")(add)
    holds.command("release")(release)
    holds.command("ls")(listing)
    app.add_typer(holds, name="history-hold")


def prune(
    store: StoreUrl,
    before: Before = None,
    older_than: Age = None,
    status: Statuses = None,
    workflow: Workflow = None,
    version: Version = None,
    run_id: RunIds = None,
    prefix: Prefix = None,
    batch: Annotated[int, typer.Option(min=1, help="About how many runs go in one transaction.")] = _PAGE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Delete runs that ended before a cutoff, for good.

    Runs that are linked go together or stay. A tombstone with a digest of the history is left of each, and its id cannot be
    used again. Interrupted at any point, the same command finishes the work.
    """
    filter = selection(status, workflow, version, run_id, prefix)

    cutoff = _cutoff(before, older_than)

    async def work() -> PruneReport:
        async with opened(store) as opened_store:
            with counted("pruning", (await opened_store.summary()).total_runs) as more:
                seen = PruneProgress(0, 0)

                def progress(done: PruneProgress) -> None:
                    nonlocal seen
                    more(done.looked_at - seen.looked_at)
                    seen = done

                return await opened_store.prune(cutoff, filter, batch=batch, dry_run=dry_run, progress=progress)

    _tell_report(perform(work()), json)


def _cutoff(before: str | None, older_than: str | None) -> int:
    if (before is None) == (older_than is None):
        raise typer.BadParameter("give one of --before and --older-than", param_hint="--before")
    if older_than is not None:
        found = re.fullmatch(r"(\d{1,9})([smhdw])", older_than)
        if found is None:
            raise typer.BadParameter(
                f"{older_than!r} is no age; write it as 90d, 12h or 30m", param_hint="--older-than"
            )
        return time.time_ns() - int(found[1]) * _UNITS[found[2]] * 1_000_000_000
    text = before or ""
    try:
        return parse_instant(f"{text}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write it as 2026-01-31T00:00:00Z", param_hint="--before"
        ) from None


def _tell_report(report: PruneReport, json: bool) -> None:
    kinds: dict[str, PrunedRuns] = {
        each.name: getattr(report, each.name) for each in fields(report) if each.name != "dry_run"
    }
    if json:
        rows = {name: {"count": runs.count, "first": runs.first} for name, runs in kinds.items()}
        tell_json({"dry_run": report.dry_run, **rows})
        return
    if report.dry_run:
        say("a dry run: nothing was deleted")
    tell_table(
        ("runs", "count", "meaning", "first of them"),
        [
            (name.replace("_", "-"), runs.count, _MEANINGS[name], " ".join(runs.first[:5]) or None)
            for name, runs in kinds.items()
        ],
    )


# retention holds -----------------------------------------------------------------------------------------------


def add(
    store: StoreUrl,
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    hold_id: Annotated[str, typer.Argument(metavar="HOLD", help="A name for the hold, to release it by.")],
    reason: Annotated[str, typer.Option(help="Why the history must be kept.")],
    json: Json = False,
) -> None:
    """Keep a run's history from being pruned."""

    async def work() -> bool:
        async with opened(store) as opened_store:
            return await opened_store.hold_history(run_id, hold_id, reason)

    try:
        added = perform(work())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if json:
        tell_json({"run_id": run_id, "hold_id": hold_id, "added": added})
    else:
        typer.echo("held" if added else "was held already")


def release(
    store: StoreUrl,
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    hold_id: Annotated[str, typer.Argument(metavar="HOLD")],
    json: Json = False,
) -> None:
    """End a retention hold."""

    async def work() -> bool:
        async with opened(store) as opened_store:
            return await opened_store.release_history(run_id, hold_id)

    released = perform(work())
    if not released:
        say(f"run {run_id!r} has no retention hold {hold_id!r}")
    if json:
        tell_json({"run_id": run_id, "hold_id": hold_id, "released": released})
    elif released:
        typer.echo("released")
    if not released:
        raise typer.Exit(1)


def listing(
    store: StoreUrl,
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]")] = None,
    json: Json = False,
) -> None:
    """List retention holds."""

    async def work() -> list[HistoryHold]:
        async with opened(store) as opened_store:
            return [hold async for hold in _holds(opened_store, run_id)]

    rows: list[dict[str, Any]] = [
        {
            "run_id": hold.run_id,
            "hold_id": hold.hold_id,
            "created_at": format_instant(hold.created_at),
            "reason": hold.reason,
        }
        for hold in perform(work())
    ]
    if json:
        tell_json(rows)
    else:
        tell_table(("run", "hold", "since", "reason"), [tuple(row.values()) for row in rows])


async def _holds(store: FlowEventStore, run_id: str | None) -> AsyncIterator[HistoryHold]:
    after: tuple[str, str] | None = None
    while page := await store.history_holds(run_id, after=after, limit=_PAGE):
        for hold in page:
            yield hold
        after = page[-1].run_id, page[-1].hold_id
