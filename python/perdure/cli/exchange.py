"""`perdure export` and `perdure import`: histories as JSON lines (spec 7.3, R49)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Final, cast

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
from perdure.errors import InvalidRunId, StoreError
from perdure.exchange import (
    ImportReport,
    Stored,
    folder_histories,
    import_histories,
    stored_histories,
    stream_histories,
)
from perdure.kernel import load
from perdure.retention import RunSelection
from perdure.stores.base import FlowEventStore

__all__ = ["register"]

_TOLD: Final = 20
"""How many refused runs are named one by one."""
_RAW: Final = "the export is raw: it holds hook tokens and payloads as they are stored, so keep it as safe as the store"

Write = Callable[[Stored], None]


class _Taken(StoreError):
    """On this disk the file of a run would replace that of another, whose id differs by case only."""

    def __init__(self, run_id: str, other: str) -> None:
        super().__init__(
            f"run {run_id!r} was not exported: its file would replace that of run {other!r} on this disk, which does not tell "
            "capitals from small letters; export to one file"
        )


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("export")(export)
    app.command("import")(import_)


# export --------------------------------------------------------------------------------------------------------


def export(
    store: StoreUrl,
    out: Annotated[str, typer.Option(metavar="PLACE", help="A folder, a file ending in .jsonl, or - for stdout.")],
    status: Statuses = None,
    workflow: Workflow = None,
    version: Version = None,
    run_id: RunIds = None,
    prefix: Prefix = None,
    json: Json = False,
) -> None:
    """Write histories as JSON lines: a file per run in a folder, or all into one file.

    Lines are written as they are stored. The reference engine reads the folder as its own.
    """
    wanted = selection(status, workflow, version, run_id, prefix)
    if json and out == "-":
        raise typer.BadParameter("stdout takes the histories or the summary, not both", param_hint="--json")
    runs, events, failed = perform(_export(store, out, wanted))
    say(_RAW)
    for name in failed:
        say(name)
    if json:
        tell_json({"runs": runs, "events": events, "failed": len(failed)})
    elif out != "-":
        tell_table(("exported runs", "events", "to"), [(runs, events, out)])
    if failed:
        raise typer.Exit(1)


async def _export(address: str, out: str, wanted: RunSelection) -> tuple[int, int, list[str]]:
    seen: set[str] = set()
    events = 0
    failed: list[str] = []
    async with opened(address) as store:
        total = (await store.summary()).total_runs
        try:
            with _sink(out) as write, counted("exporting", total) as more:
                async for stored in stored_histories(store, wanted):
                    seen.add(stored.run_id)
                    try:
                        write(stored)
                    except (InvalidRunId, _Taken) as error:
                        failed.append(str(error))
                    else:
                        events += stored.lines.count(b"\n")
                    more(1)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--run-id") from None
        runs = len(seen) - len(failed)
        if wanted == RunSelection():
            failed += await _damaged(store, seen)
    return runs, events, failed


async def _damaged(store: FlowEventStore, seen: set[str]) -> list[str]:
    """What is wrong with runs that a listing leaves out: their logs cannot be read."""
    wrong: list[str] = []
    for run_id in await store.run_ids():
        if run_id not in seen:
            try:
                await store.lease(run_id)
            except StoreError as error:
                wrong.append(error.detail)
    return wrong


@contextmanager
def _sink(out: str) -> Iterator[Write]:
    """Where histories go. A file appears whole, when all of it is written."""
    if out == "-":
        yield lambda stored: _write_out(stored.lines)
    elif out.endswith(".jsonl") and not Path(out).is_dir():
        with _whole(Path(out)) as file:
            yield lambda stored: _write_all(file, stored.lines)
    else:
        yield _folder(Path(out))


def _write_out(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _write_all(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _folder(folder: Path) -> Write:
    if (folder / "perdure.lock").exists():
        raise StoreError(f"{folder} is the folder of a JSONL store; export to another, or import into that store")
    folder.mkdir(parents=True, exist_ok=True)
    check = load("rust").check_run_id
    names = {file.name for file in folder.iterdir()}

    def write(stored: Stored) -> None:
        check(stored.run_id)  # the only ids that may become file names
        path = folder / f"{stored.run_id}.jsonl"
        if path.name not in names and path.exists():
            # A disk that takes capitals and small letters for the same has the file of another run there.
            for name in names:
                if name.lower() == path.name.lower():
                    raise _Taken(stored.run_id, name.removesuffix(".jsonl"))
        with _whole(path) as file:
            file.write(stored.lines)
        names.add(path.name)

    return write


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    draft = path.with_name(f"{path.name}.part")
    try:
        with draft.open("wb") as file:
            yield cast(BinaryIO, file)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


# import --------------------------------------------------------------------------------------------------------


def import_(
    store: StoreUrl,
    source: Annotated[str, typer.Argument(metavar="PLACE", help="A folder of <run>.jsonl, a file, or - for stdin.")],
    json: Json = False,
) -> None:
    """Take histories over from JSON lines, this engine's or the reference's.

    Each is checked by replaying it before anything of its run is written. A run that is there already with this history is
    left as it is, so an import that was cut short is finished by the same command; one that is there with another history is
    refused, and the others go on.
    """
    report = perform(_import(store, source))
    for refused in report.refused[:_TOLD]:
        say(f"run {refused.run_id!r} was refused: {refused.reason}")
    if len(report.refused) > _TOLD:
        say(f"and {len(report.refused) - _TOLD} runs more were refused")
    if report.missing:
        shown = ", ".join(report.missing[:5])
        say(f"{len(report.missing)} runs that imported ones are linked to are not in the store: {shown}")
    _tell(report, json)
    if report.refused:
        raise typer.Exit(1)


async def _import(address: str, source: str) -> ImportReport:
    with ExitStack() as files:
        histories, total = _source(source, files)
        async with opened(address, make=True) as store:
            with counted("importing", total) as more:
                return await import_histories(store, _noted(histories), progress=more)


def _source(source: str, files: ExitStack) -> tuple[Iterator[Stored], int | None]:
    """The histories of a place, and how many there are if that is known."""
    path = Path(source)
    if source != "-" and path.is_dir():
        return folder_histories(path), sum(1 for file in path.iterdir() if file.name.endswith(".jsonl"))
    if source != "-":
        return stream_histories(cast(BinaryIO, files.enter_context(path.open("rb")))), None
    spool = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.seek(0)
    return stream_histories(cast(BinaryIO, spool)), None


def _noted(histories: Iterator[Stored]) -> Iterator[Stored]:
    for stored in histories:
        if stored.note is not None:
            say(f"run {stored.run_id!r}: {stored.note}")
        yield stored


def _tell(report: ImportReport, json: bool) -> None:
    if json:
        refused = [refusal._asdict() for refusal in report.refused]
        counts = {"imported": report.imported, "present": report.present, "events": report.events}
        tell_json({**counts, "refused": refused, "missing": report.missing})
    else:
        row = (report.imported, report.events, report.present, len(report.refused))
        tell_table(("imported runs", "events", "there already", "refused"), [row])
