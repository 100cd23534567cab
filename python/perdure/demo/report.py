"""How the demo prints: plain text, at most 100 columns, no payloads and no tokens."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.demo.ledger import Attempt, Effect
from perdure.demo.record import Record, Row, rows_of

__all__ = ["Live", "ledger_table", "say", "timelines"]

_WIDTH: Final = 100


def say(text: str) -> None:
    """A line of the narration."""
    print(textwrap.fill(text, _WIDTH, initial_indent="==> ", subsequent_indent="    "), flush=True)


class Live:
    """Prints what is new in the store and in the ledger at each look, in order of time."""

    def __init__(self) -> None:
        self._shown_rows: dict[str, int] = defaultdict(int)
        self._shown_effects = 0
        self._origin: int | None = None

    def show(self, rows: Iterable[Row], effects: Sequence[Effect]) -> None:
        new: list[tuple[int, str]] = []
        for row in rows:
            if row.sequence > self._shown_rows[row.run_id]:
                self._shown_rows[row.run_id] = row.sequence
                text = f"{row.run_id:<10} {row.type:<27} {row.subject:<10} {_attempt(row):<9}  {_ahead(row)}"
                new.append((row.at, text))
        for effect in effects[self._shown_effects :]:
            text = f"{effect.run_id:<10} {'* side effect':<27} {effect.step_id:<10} attempt {effect.attempt}  "
            new.append((effect.at, text + effect.result))
        self._shown_effects = len(effects)
        for at, text in sorted(new, key=lambda line: line[0]):
            self._origin = at if self._origin is None else self._origin
            print(f"  {seconds(at - self._origin)}  {text}".rstrip(), flush=True)


def seconds(ns: int) -> str:
    """Seconds with milliseconds, right-aligned."""
    return f"{ns / 1e9:7.3f} s"


def _attempt(row: Row) -> str:
    return "" if row.attempt is None else f"attempt {row.attempt}"


def _ahead(row: Row) -> str:
    return "" if row.delay_ms is None else f"due in {_delay(row)}"


def _delay(row: Row) -> str:
    if row.delay_ms is None:
        return ""
    return f"{row.delay_ms} ms" if row.delay_ms < 10_000 else f"{row.delay_ms / 1000:.0f} s"


def timelines(record: Record) -> str:
    """One table per run, time counted from the run's first event."""
    parts: list[str] = []
    for run_id, history in record.histories.items():
        run = record.runs()[run_id]
        parts.append(f"{run_id}  {run.spec.name} {run.spec.version}  {run.status}, {run.last_sequence} events")
        parts.append("   seq       time  event                       subject     attempt    delay")
        rows = rows_of(history)
        for row in rows:
            attempt = "" if row.attempt is None else str(row.attempt)
            what = f"{row.type:<27} {row.subject:<10}  {attempt:>7}  {_delay(row):>7}"
            parts.append(f"  {row.sequence:>4}  {seconds(row.at - rows[0].at)}  {what}".rstrip())
        parts.append("")
    return "\n".join(parts)


def ledger_table(effects: Iterable[Effect]) -> str:
    """What each attempt did outside: once, or twice under which key."""
    by_attempt: dict[Attempt, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_attempt[effect.of].append(effect)
    parts = ["  ran   run       step   attempt  by      result                  idempotency key"]
    for (run_id, step_id, attempt), found in by_attempt.items():
        for number, effect in enumerate(found):
            ran = "" if number else _times(len(found))
            what = f"{run_id:<9} {step_id:<7}{attempt:>7}  {effect.process:<6}  {effect.result:<22}  {effect.key}"
            parts.append(f"  {ran:<5} {what}")
    return "\n".join(parts)


def _times(count: int) -> str:
    return {1: "once", 2: "TWICE"}.get(count, f"{count} x")
