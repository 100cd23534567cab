"""Reading files of vectors; what a file holds is recognised by the keys of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from perdure.testing._conformance.values import loads

__all__ = ["Kind", "Row", "Unreadable", "VectorFile", "read"]

Kind = Literal["case", "history", "equality", "event_id", "retry_delay"]

_MARKS: Final[tuple[tuple[str, Kind], ...]] = (
    ("calls", "case"),
    ("lines", "history"),
    ("entropy", "event_id"),
    ("failed_attempt", "retry_delay"),
)


class Unreadable(ValueError):
    """A file that cannot be read, or a row of no known form; the text says which."""


@dataclass(frozen=True, slots=True)
class Row:
    """One vector. `data` holds numbers as `values.loads` gives them."""

    name: str
    kind: Kind
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class VectorFile:
    path: Path
    rows: tuple[Row, ...]


def read(path: Path) -> VectorFile:
    """Reads a file of rows, one JSON object a line, or one JSON list. Raises `Unreadable`."""
    try:
        text = path.read_bytes().decode()
        whole = text.lstrip().startswith("[")
        values = loads(text) if whole else [loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from None
    return VectorFile(path, tuple(_row(path, index, value) for index, value in enumerate(values, 1)))


def _row(path: Path, index: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise Unreadable(f"{path}: row {index} is no JSON object")
    for mark, kind in _MARKS:
        if mark in value:
            return Row(str(value.get("name") or _NAMES.get(kind, _by_index)(index, value)), kind, value)
    if {"a", "b"} <= value.keys():
        return Row(f"row {index}: {value['a']} and {value['b']}"[:120], "equality", value)
    raise Unreadable(f"{path}: row {index} has none of the keys {', '.join(mark for mark, _ in _MARKS)}, a and b")


def _by_index(index: int, value: dict[str, Any]) -> str:
    return f"row {index}"


_NAMES: Final[dict[str, Callable[[int, dict[str, Any]], str]]] = {
    "retry_delay": lambda index, row: f"row {index}: {row['run_id']} {row['step_id']} attempt {row['failed_attempt']}",
    "event_id": lambda index, row: f"row {index}: {row['entropy']}",
}
