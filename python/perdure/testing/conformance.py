"""Runs files of conformance vectors against this engine and reports what differs.

    python -m perdure.testing.conformance [--kernel NAME]… [--store NAME]… [--shell NAME]… [--use NAME]… [--commit MODE] FILE…

What a file holds is recognised by its rows: cases (programs, calls, recorded histories), histories with their snapshot or
refusal, JSON equality, event ids, retry delays. The asyncio engine runs on an event loop with virtual time, the blocking one
in real time with a clock that moves between its calls, its steps in threads (`blocking`) or in place (`blocking-inline`).
One line is printed for every row that fails, one for every file and use, and last the total. Exit status 0 if all passed, 1
if any failed, 2 for a file that cannot be read.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from perdure.kernel import Kernel, KernelName, load
from perdure.testing._conformance import kernel_uses
from perdure.testing._conformance.report import Failure, LeftOut, Report, Use
from perdure.testing._conformance.rows import Row, Unreadable, VectorFile, read

__all__ = [
    "CommitMode",
    "Failure",
    "LeftOut",
    "Report",
    "ShellName",
    "StoreName",
    "Unreadable",
    "Use",
    "UseName",
    "main",
    "run_files",
]

StoreName = Literal["memory", "jsonl", "sqlite"]
CommitMode = Literal["staged", "each"]
ShellName = Literal["asyncio", "blocking", "blocking-inline"]
UseName = Literal["kernel", "run", "continue"]
"""What needs a kernel only; the calls of a case; the calls again after every prefix of its history."""
KERNELS: Final[tuple[KernelName, ...]] = get_args(KernelName)
STORES: Final[tuple[StoreName, ...]] = get_args(StoreName)
SHELLS: Final[tuple[ShellName, ...]] = get_args(ShellName)
DEFAULT_STORES: Final[tuple[StoreName, ...]] = ("memory", "sqlite")
DEFAULT_SHELLS: Final[tuple[ShellName, ...]] = ("asyncio",)
"""Where every row can be used; the other stores and shells take longer and are asked for by name."""
USES: Final[tuple[UseName, ...]] = get_args(UseName)

_T = TypeVar("_T")


def run_files(
    files: Iterable[Path],
    kernels: Sequence[KernelName] = KERNELS,
    stores: Sequence[StoreName] = DEFAULT_STORES,
    commit: CommitMode = "staged",
    say: Callable[[str], None] = lambda line: None,
    *,
    shells: Sequence[ShellName] = DEFAULT_SHELLS,
    uses: Sequence[UseName] = USES,
) -> Report:
    """Uses every row of `files` in every way that fits it; `say` gets a line for each failure as it happens.

    Without `stores` no engine is run. Raises `Unreadable` for a file that cannot be read or has a row of no known form,
    `ImportError` for a kernel that is not there."""
    report = Report(say)
    for file in [read(path) for path in files]:
        for name in kernels if "kernel" in uses else ():
            _use_kernel(report, file, name)
        for name, store, shell in product(kernels, stores, shells):
            for use in uses:
                _use_engine(report, file, use, (name, store, commit, shell))
    return report


def _use_kernel(report: Report, file: VectorFile, name: KernelName) -> None:
    kernel = load(name)
    for row in file.rows:
        use, judge = _kernel_use(row)
        report.judge(Use(str(file.path), use, name), row.name, _guarded(lambda: judge(kernel, row)))  # noqa: B023 - called at once


def _kernel_use(row: Row) -> tuple[str, Callable[[Kernel, Row], str | None]]:
    match row.kind:
        case "case":
            return "project", kernel_uses.project_case
        case "history":
            return "project" if "by" in row.data else "decode", kernel_uses.project_history
        case "equality":
            return "equality", kernel_uses.equality
        case "event_id":
            return "event id", kernel_uses.event_id
        case "retry_delay":
            return "retry delay", kernel_uses.retry_delay


def _use_engine(
    report: Report, file: VectorFile, name: UseName, way: tuple[KernelName, StoreName, CommitMode, ShellName]
) -> None:
    cases = [row for row in file.rows if row.kind == "case"]
    if not cases or name == "kernel":
        return
    # Imported here, so that a kernel can be judged without an engine.
    from perdure.testing._conformance import engine_uses
    from perdure.testing._conformance.world import Setup

    setup = Setup(*way)
    use = Use(str(file.path), name, str(setup))
    left_out, judge = {
        "run": (engine_uses.left_out_of_run, engine_uses.run_case),
        "continue": (engine_uses.left_out_of_continue, engine_uses.continue_case),
    }[name]
    for row in cases:
        if reason := left_out(row, setup):
            report.leave_out(use, row.name, reason)
        else:
            report.judge(use, row.name, _guarded(lambda: judge(row, setup)))  # noqa: B023 - called at once


def _guarded(judge: Callable[[], str | None]) -> str | None:
    try:
        return judge()
    except Exception as error:  # noqa: BLE001 - a row that breaks what it runs in has failed, and the others still count
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""
        return f"expected a verdict, found {type(error).__name__}: {error}{where}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m perdure.testing.conformance",
        description="Run files of conformance vectors and report what differs.",
        epilog="Exit status: 0 if every row passed, 1 if any failed, 2 for bad usage or a file that cannot be read.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a file of vectors, .jsonl or .json")
    parser.add_argument(
        "--kernel", action="append", choices=KERNELS, help="judge this kernel (repeatable; default: both)"
    )
    parser.add_argument(
        "--store", action="append", choices=STORES, help="run on this store (repeatable; default: memory and sqlite)"
    )
    parser.add_argument(
        "--shell", action="append", choices=SHELLS, help="run in this shell (repeatable; default: asyncio)"
    )
    parser.add_argument("--use", action="append", choices=USES, help="use the rows so (repeatable; default: all)")
    parser.add_argument(
        "--commit", choices=get_args(CommitMode), default="staged", help="how engines commit (default: staged)"
    )
    given = parser.parse_args(arguments)
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # outcomes are discarded on purpose here
    try:
        report = run_files(
            given.files,
            _named(given.kernel, KERNELS),
            _named(given.store, DEFAULT_STORES),
            given.commit,
            lambda line: print(line, flush=True),
            shells=_named(given.shell, DEFAULT_SHELLS),
            uses=_named(given.use, USES),
        )
    except (Unreadable, ImportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    for line in report.lines():
        print(line)
    return 0 if report.ok else 1


def _named(given: list[_T] | None, every: Sequence[_T]) -> Sequence[_T]:
    return list(dict.fromkeys(given)) if given else every


if __name__ == "__main__":
    sys.exit(main())
