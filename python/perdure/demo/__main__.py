"""The command `python -m perdure.demo`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perdure.demo.checks import Evidence, checks_of
from perdure.demo.director import Director, Stuck
from perdure.demo.ledger import Attempt
from perdure.demo.record import KERNELS
from perdure.demo.report import ledger_table, say, timelines
from perdure.demo.worker import work
from perdure.errors import FlowError
from perdure.kernel import KernelName, load

__all__ = ["main"]

_ABOUT = """\
Places three orders on an SQLite file, kills the process that works on them between a payment and
its commit, lets a second process carry on, and prints what the store and the outside world
remember. Takes about ten seconds. Exit status 0 only if every check at the end holds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; gives the exit status: 0 all checks hold, 1 not, 130 interrupted. Wrong arguments exit with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options.db, _ledger_of(options.db), options.kernel, options.worker, options.hold)
        return 0
    _check(parser, options.db)
    try:
        return _play(options.db, options.kernel) if options.db else _play_in_folder(options.kernel, options.keep)
    except KeyboardInterrupt:
        print("\ninterrupted; the processes of the demo are ended", file=sys.stderr)
        return 130


def _check(parser: argparse.ArgumentParser, db: Path | None) -> None:
    if (missing := _missing_kernel()) is not None:
        parser.error(f"the checks compare both kernels and {missing} cannot be imported; build it with `make kernel`")
    if db is not None and (db.exists() or _ledger_of(db).exists()):
        parser.error(f"{db} or its ledger exists already; the demo wants to begin with a new file")


def _play_in_folder(kernel: KernelName, keep: bool) -> int:
    """Plays in a folder of its own, which stays behind if it is wanted or something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    keep_it = True
    try:
        status = _play(folder / "orders.db", kernel)
        keep_it = keep or status != 0
        return status
    except KeyboardInterrupt:
        keep_it = keep
        raise
    finally:
        if keep_it:
            print(f"The files are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m perdure.demo", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = "the file to use, a new one (default: in a temporary folder)"
    parser.add_argument("--db", type=Path, metavar="PATH", help=where)
    parser.add_argument("--kernel", choices=KERNELS, default="rust", help="which kernel drives (default: rust)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    # How the demo calls itself.
    parser.add_argument("--worker", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--hold", type=_attempt, metavar="RUN/STEP/ATTEMPT", help=argparse.SUPPRESS)
    return parser


def _missing_kernel() -> KernelName | None:
    for name in KERNELS:
        try:
            load(name)
        except ImportError:
            return name
    return None


def _attempt(text: str) -> Attempt:
    run_id, step_id, attempt = text.split("/")
    return run_id, step_id, int(attempt)


def _ledger_of(db: Path) -> Path:
    return db.with_name(db.name + ".ledger")


def _play(db: Path, kernel: KernelName) -> int:
    say(f"The store is {db}, the ledger of side effects lies beside it. Kernel: {kernel}.")
    try:
        with Director(db, _ledger_of(db), kernel) as director:
            evidence = director.play()
    except (Stuck, FlowError) as problem:
        print(f"FAILED  {problem}", file=sys.stderr)
        return 1
    return _tell(evidence)


def _tell(evidence: Evidence) -> int:
    print("\nWhat the store remembers\n")
    print(timelines(evidence.record))
    print("What happened outside\n")
    print(ledger_table(evidence.record.effects))
    print("\nChecks\n")
    checks = checks_of(evidence)
    for check in checks:
        print(f"  ok      {check.text}" if check.holds else f"  FAILED  {check.text} (found: {check.found})")
    failed = sum(not check.holds for check in checks)
    print(f"\n{len(checks)} checks, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
