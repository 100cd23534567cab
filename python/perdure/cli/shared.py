"""What all commands share: their common options, the store they work on, and how they speak.

Results go to stdout, as a table or with `--json` as one line of JSON; everything else, progress too, goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Final, TypeVar

import orjson
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from perdure.errors import StoreError
from perdure.retention import RunSelection
from perdure.stores import open_store
from perdure.stores.address import parse_address
from perdure.stores.base import FlowEventStore
from perdure.stores.jsonl_folder import JsonlFolder

__all__ = [
    "YEAR",
    "Json",
    "Prefix",
    "RunIds",
    "ShowTokens",
    "Statuses",
    "StoreUrl",
    "Version",
    "Workflow",
    "brief",
    "counted",
    "named",
    "opened",
    "perform",
    "plain",
    "say",
    "selection",
    "tell_json",
    "tell_table",
]

T = TypeVar("T")
YEAR: Final = 365 * 86_400.0
"""The most that an option in seconds may say."""

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="PERDURE_STORE",
        metavar="URL",
        help="The store: sqlite:///app.db or a path, postgresql://…, jsonl:folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
ShowTokens = Annotated[bool, typer.Option("--show-tokens", help="Show hook tokens, which are secrets.")]


def perform(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine to its end."""
    return asyncio.run(work)


@contextmanager
def named(address: str) -> Iterator[None]:
    """A block that opens the store at `address`: an address that is none is wrong usage."""
    try:
        parse_address(address)
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--store") from None


@asynccontextmanager
async def opened(address: str, *, make: bool = False) -> AsyncIterator[FlowEventStore]:
    """The store at `address`, while the block runs. With `make` it is made or migrated if it must be; a command that only looks,
    or deletes, leaves it false and is refused instead. Raises what opening it raises, and a usage error for an address
    that is none."""
    parsed = parse_address(address)
    if not make and parsed.kind == "jsonl" and not (folder := JsonlFolder(address).path).is_dir():
        raise StoreError(f"JSONL folder {folder} does not exist")
    with named(address):
        store = open_store(address, migrate=make)
    try:
        yield store
    finally:
        await store.close()


# selecting -----------------------------------------------------------------------------------------------------

Statuses = Annotated[list[str] | None, typer.Option("--status", help="Only runs of this status; may be repeated.")]
Workflow = Annotated[str | None, typer.Option(help="Only runs of this workflow.")]
Version = Annotated[str | None, typer.Option(help="Only runs of this version of it.")]
RunIds = Annotated[list[str] | None, typer.Option("--run-id", help="Only this run; may be repeated.")]
Prefix = Annotated[str | None, typer.Option(help="Only runs whose id begins so.")]


def selection(
    status: list[str] | None, workflow: str | None, version: str | None, run_ids: list[str] | None, prefix: str | None
) -> RunSelection:
    """The runs that a command's options mean."""
    try:
        return RunSelection(status or None, workflow, version, run_ids or None, prefix)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--status") from None


# speaking ------------------------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """`text` on one line and without characters that steer a terminal: ids and names may come from anywhere."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in " ".join(str(text).splitlines()))


def say(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"perdure: {plain(message)}\n")


def tell_json(value: object) -> None:
    """One line of JSON on stdout."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        text = json.dumps(value)  # escapes a lone surrogate, as in the name of a file that is no text
    sys.stdout.write(text + "\n")


def brief(text: str) -> str:
    """`text` for a cell of a table that a payload may stand in: a terminal shows no more than one of its lines, anybody else
    gets all of it."""
    line = plain(text)
    if not sys.stdout.isatty():
        return line
    room = Console().width - 1
    return line if len(line) <= room else f"{line[:room]}…"


def tell_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; None shows as a dash, numbers stand to the right. A terminal that is too narrow for it gets the
    cells folded; where none shows it, each row is one line, however long."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        _tell_lines([[Text(column) for column in columns], *cells])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def _tell_lines(rows: Sequence[Sequence[Text]]) -> None:
    widths = [max(cell_len(cell.plain) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join([*map(_padded, row[:-1], widths), row[-1].plain]) + "\n")


def _padded(cell: Text, width: int) -> str:
    room = " " * (width - cell_len(cell.plain))
    return room + cell.plain if cell.justify == "right" else cell.plain + room


def _cell(value: object) -> Text:
    if value is None:
        return Text("-")
    return Text(plain(value), justify="right" if isinstance(value, int | float) else "left")


@contextmanager
def counted(doing: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal's stderr how far `doing` is; the block is given what it calls with how many more are done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda done: progress.advance(task, done)
