"""`make bench`: three rounds of the suites, medians of them, ratios, and the gates; writes RESULTS.md.

`python -m benches.report --smoke` runs each benchmark once on small histories, prints the table and writes nothing.
A round measures all engines of a row one after the other, so that what disturbs the machine disturbs them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benches.bench_coroutine import EARLY, LATE, RECOVERY, SOME, step_row
from benches.bench_postgres import BARE, BARE_BATCH, STORE
from benches.bench_stores import AT_ONCE, SERIAL
from benches.stores import BATCH

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
SUITES = tuple(f"benches/bench_{name}.py" for name in ("kernel", "drive", "coroutine", "stores", "postgres", "jsonl"))
ROUNDS = 3
ENGINES = ("rust", "pure", "orjson")

GATE_RATIO = 6.0
"""At 1,000 events the Rust kernel replays at least this many times as fast as the orjson baseline."""
GATE_LINEAR = 2.0
"""An event of 100,000 costs at most this many times what one of 1,000 does."""
GATE_RECOVERY = 2.5
"""An async run is carried on from its bytes at least this many times as fast as by `prototype.py`."""
GATE_FLAT = 1.5
"""A late step of an async run costs at most this many times what an early one does."""
STORE_GATES = (
    (SERIAL, "SQLite FULL", SERIAL, "bare SQLite FULL", 0.8),
    (AT_ONCE, "SQLite FULL", AT_ONCE, f"bare SQLite FULL, {BATCH} rows", 0.5),
    (SERIAL, STORE, SERIAL, BARE, 0.8),
    (AT_ONCE, STORE, AT_ONCE, BARE_BATCH, 0.4),
)
"""A store's events a second, in a row and column, are at least this much of a floor's."""


@dataclass(frozen=True)
class Row:
    """One line of the table: seconds per call by engine, and how many events a call replays."""

    name: str
    events: int | None
    seconds: dict[str, float]

    def ratio(self, slower: str, faster: str = "rust") -> float | None:
        if slower in self.seconds and faster in self.seconds:
            return self.seconds[slower] / self.seconds[faster]
        return None


def measure_round(smoke: bool) -> list[dict[str, Any]]:
    """One pytest session over the suites; the benchmarks of its JSON report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "round.json"
        tuning = ["--smoke"] if smoke else ["--benchmark-min-rounds=3", "--benchmark-max-time=0.5"]
        command = [sys.executable, "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider", "--timeout=900"]
        command += ["--benchmark-only", "--benchmark-quiet", f"--benchmark-json={report}", *tuning, *SUITES]
        done = subprocess.run(command, cwd=HERE.parent, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        found: list[dict[str, Any]] = json.loads(report.read_text("utf-8"))["benchmarks"]
        return found


def rows_of(rounds: list[list[dict[str, Any]]]) -> list[Row]:
    """The median of the rounds' medians for each cell, rows in the order of the suites."""
    cells: dict[tuple[str, int | None], dict[str, list[float]]] = {}
    for benchmarks in rounds:
        for bench in benchmarks:
            if "engine" not in bench["extra_info"]:
                continue  # of another table
            key = (bench["group"], bench["extra_info"]["events"])
            cells.setdefault(key, {}).setdefault(bench["extra_info"]["engine"], []).append(bench["stats"]["median"])
    return [
        Row(name, events, {engine: statistics.median(found) for engine, found in engines.items()})
        for (name, events), engines in cells.items()
    ]


@dataclass(frozen=True)
class StoreCell:
    """One line of the table of stores: seconds of a commit, or of a read, and how many commits shared a transaction."""

    row: str
    column: str
    events_a_second: float
    p50: float
    p99: float
    group: float | None


def cells_of(rounds: list[list[dict[str, Any]]]) -> list[StoreCell]:
    """The median of the rounds for each cell of the table of stores, in the order of the suites."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for benchmarks in rounds:
        for bench in benchmarks:
            if bench["extra_info"].get("table") == "stores":
                found.setdefault((bench["group"], bench["extra_info"]["column"]), []).append(bench["extra_info"])
    cells = []
    for (row, column), told in found.items():
        rate, p50, p99 = (statistics.median(one[name] for one in told) for name in ("events_a_second", "p50", "p99"))
        groups = [one["group"] for one in told if one["group"] is not None]
        cells.append(StoreCell(row, column, rate, p50, p99, statistics.median(groups) if groups else None))
    return cells


def store_gates(cells: list[StoreCell]) -> list[str]:
    """What the gates of the stores say, one line each."""
    rates = {(cell.row, cell.column): cell.events_a_second for cell in cells}
    lines = []
    for row, column, floor_row, floor, bound in STORE_GATES:
        if (row, column) in rates and (floor_row, floor) in rates:
            ratio = rates[row, column] / rates[floor_row, floor]
            lines.append(
                _gate(f"{column}, {row}: {ratio:.2f} of {floor}", ratio >= bound, f"at least {bound:g} of the floor")
            )
    return lines


def store_table(cells: list[StoreCell]) -> str:
    lines = [("what", "where", "events/s", "p50", "p99", "commits a group"), ("---", "---", *["---:"] * 4)]
    for cell in cells:
        group = "" if cell.group is None else f"{cell.group:.1f}"
        times = (_time(cell.p50, None), _time(cell.p99, None))
        lines.append((cell.row, cell.column, f"{cell.events_a_second:,.0f}", *times, group))
    return _aligned(lines)


def gates(rows: list[Row]) -> list[str]:
    """What the gates of the kernel say, one line each."""
    projections = {row.events: row for row in rows if row.name.startswith("project ")}
    lines = []
    at_1_000, at_100_000 = projections.get(1_000), projections.get(100_000)
    if at_1_000 and (ratio := at_1_000.ratio("orjson")):
        lines.append(
            _gate(
                f"replay of 1,000 events: rust is {ratio:.1f}x the orjson baseline",
                ratio >= GATE_RATIO,
                f"at least {GATE_RATIO:g}x",
            )
        )
    if at_1_000 and at_100_000:
        growth = (at_100_000.seconds["rust"] / 100_000) / (at_1_000.seconds["rust"] / 1_000)
        lines.append(
            _gate(
                f"an event of 100,000 costs {growth:.2f}x one of 1,000",
                growth <= GATE_LINEAR,
                f"at most {GATE_LINEAR:g}x",
            )
        )
    return lines


def async_gates(rows: list[Row], cells: list[StoreCell]) -> list[str]:
    """What the gates of the async form say, one line each."""
    lines = []
    recovery = next((row.ratio("orjson") for row in rows if row.name == RECOVERY), None)
    if recovery:
        text = f"{RECOVERY}: {recovery:.2f}x the prototype"
        lines.append(_gate(text, recovery >= GATE_RECOVERY, f"at least {GATE_RECOVERY:g}x"))
    times = {(cell.row, cell.column): cell.p50 for cell in cells}
    for (row, column), late in times.items():
        if row == step_row(LATE) and (early := times.get((step_row(EARLY), column))):
            text = f"{column}, {row}: {late / early:.2f}x of {EARLY} to {EARLY + SOME}"
            lines.append(_gate(text, late <= GATE_FLAT * early, f"at most {GATE_FLAT:g}x"))
    return lines


def _gate(text: str, holds: bool, bound: str) -> str:
    return f"{'PASS' if holds else 'FAIL'}: {text} (gate: {bound})"


def all_gates(rows: list[Row], cells: list[StoreCell]) -> list[str]:
    return gates(rows) + async_gates(rows, cells) + store_gates(cells)


def table(rows: list[Row]) -> str:
    head = ("what", *ENGINES, "pure / rust", "orjson / rust")
    lines = [head, tuple("---" if n == 0 else "---:" for n in range(len(head)))]
    for row in rows:
        times = tuple(_time(row.seconds.get(engine), row.events) for engine in ENGINES)
        lines.append((row.name, *times, _ratio(row.ratio("pure")), _ratio(row.ratio("orjson"))))
    return _aligned(lines)


def _aligned(lines: list[tuple[str, ...]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _time(seconds: float | None, events: int | None) -> str:
    if seconds is None:
        return ""
    unit, scale = next(
        (u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)) if seconds >= s or u == "ns"
    )
    text = f"{seconds / scale:.3g} {unit}" if seconds / scale < 1000 else f"{seconds / scale:,.0f} {unit}"
    return f"{text} ({events / seconds / 1e6:.2f} M events/s)" if events else text


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def machine() -> str:
    """Processor, cores and versions; nothing that names the host."""
    return "; ".join(
        (
            f"{_cpu()}, {os.cpu_count()} cores",
            f"{platform.system()} {platform.machine()}",
            f"Python {platform.python_version()}",
            _output("rustc", "--version").split(" (")[0],
        )
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.lower().startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or "unknown processor"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def page(rows: list[Row], cells: list[StoreCell]) -> str:
    return "\n".join(
        (
            "# Results",
            "",
            f"`make bench`, {datetime.now(UTC):%Y-%m-%d}, on: {machine()}.",
            "",
            f"Time per call; the median of {ROUNDS} interleaved rounds, each the median of its calls. Histories are",
            "those of `generate.py`, about 290 bytes an event. `orjson` is `baseline.py`: parse each line, keep dicts,",
            "check nothing; for the async form it is `prototype.py`, which checks what it owes. Both kernels check every",
            "event and gave equal answers before anything was timed.",
            "",
            table(rows),
            "",
            "## Stores",
            "",
            "Durable events a second, and the time of a commit or of a read. The bare ones are floors: the same rows, or the",
            "same bytes, written by a loop that compares and moves the sequence and does nothing else.",
            "",
            store_table(cells),
            "",
            "## Gates",
            "",
            *(f"* {line}" for line in all_gates(rows, cells)),
            "",
        )
    )


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="run everything once on small histories, write nothing")
    smoke: bool = parser.parse_args().smoke
    rounds = []
    for number in range(1, 2 if smoke else ROUNDS + 1):
        say(f"==> {'smoke run' if smoke else f'round {number} of {ROUNDS}'} of {', '.join(SUITES)}")
        rounds.append(measure_round(smoke))
    rows, cells = rows_of(rounds), cells_of(rounds)
    say("\n" + table(rows) + "\n\n" + store_table(cells) + "\n")
    if smoke:
        return
    for line in all_gates(rows, cells):
        say(line)
    RESULTS.write_text(page(rows, cells), encoding="utf-8")
    say("written: benches/RESULTS.md")


if __name__ == "__main__":
    main()
